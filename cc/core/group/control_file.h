// ControlFile: a group's identity, sequence word and commit records (layout.h).
#ifndef TFSPS_CORE_GROUP_CONTROL_FILE_H_
#define TFSPS_CORE_GROUP_CONTROL_FILE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/group/layout.h"
#include "core/os/mapped_file.h"

namespace tsps {

// A commit record's content, copied out.
struct State {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t version = 0;
  uint32_t changes = 0;
  std::vector<TableState> tables;
  // What CheckRecord (damage.h) looks at: the number of tables as it was recorded, and whether
  // there are more behind them.
  uint32_t recorded_tables = 0;
  bool more_tables = false;
};

// What is drawn for a group when it is made.
struct GroupDraw {
  uint64_t life = 0;  // not 0
  uint64_t index_seed = 0;

  static GroupDraw Random();
};

// A mutation that a writer has sealed (GroupWriter::Seal) and not published.
struct Sealed {
  uint64_t step = 0;
  uint64_t run_id = 0;
  uint32_t peers = 0;
};

class ControlFile {
 public:
  static Result<std::unique_ptr<ControlFile>> Create(const std::string& path,
                                                     const std::string& uuid,
                                                     const GroupDraw& draw);
  static Result<std::unique_ptr<ControlFile>> Open(const std::string& path);
  Status MakeWritable() { return file_->MakeWritable(); }

  std::string uuid() const;
  GroupDraw draw() const;
  MappedFile& file() { return *file_; }
  const std::string& path() const { return file_->path(); }
  // The folder of the table in a place. Garbage (of sane length) if another table comes into the
  // place meanwhile; validate afterwards.
  std::string TableName(size_t place) const;
  LiveState& live() const { return *reinterpret_cast<LiveState*>(file_->data() + kLiveOffset); }

  // --- Reading. ---
  uint64_t sequence() const { return live().sequence.load(std::memory_order_acquire); }
  // True if the sequence word still is `sequence` after everything read so far.
  bool Validate(uint64_t sequence) const;
  // True if its epoch still is the committed one: record e stays as it is while epoch e + 1 is
  // being written.
  bool ValidateEpoch(uint64_t sequence) const;
  // Copies the record of `epoch`. Garbage (with a sane table count) if a mutation races; validate
  // afterwards.
  void LoadState(uint64_t epoch, State* state) const;
  // Copies the last committed record, beside whatever the writer does. Returns the sequence word,
  // which may have become odd since, not more.
  uint64_t LoadLastState(State* state) const;
  uint64_t CommittedStep() const;
  uint64_t CommittedVersion() const;
  // From here on the mutation can only be undone.
  void Unseal() { live().sealed.epoch.store(0, std::memory_order_release); }
  // Whether the mutation to an odd sequence word is sealed: as long as it is, its undo log and what
  // it has written stay as they are.
  bool IsSealed(uint64_t sequence) const {
    return live().sealed.epoch.load(std::memory_order_acquire) == sequence / 2 + 1;
  }
  // The sealed mutation that follows `epoch`, if there is one. DataLoss if it cannot be read.
  Result<std::optional<Sealed>> SealedAfter(uint64_t epoch) const;
  // Where scans announce themselves (scan_file.h): LiveState.scans, writable. Null where this
  // process must not write, on a read-only file system, say.
  std::atomic<uint64_t>* Announcements();
  // Sleeps until the sequence word differs from `sequence`, or for `ms`.
  void AwaitChange(uint64_t sequence, int ms) const;

  // --- Writing: the one writer, under the lock. ---
  // Of a vacant place.
  void SetTableName(size_t place, const std::string& name);
  // Declares the undo log valid for epoch + 1 and makes the sequence odd. From here to Publish or
  // Abandon readers wait.
  void Begin(uint64_t epoch);
  // Around what moves entries of an index; EndRebuild after it is published.
  void BeginRebuild();
  void EndRebuild();
  // Between Begin and Publish: writes the record of `next`, as epoch next.epoch, which is not
  // published, and says that it is for others to decide, too.
  void Seal(const State& next, const Sealed& sealed);
  // Publishes `state` as epoch state.epoch and wakes who waits.
  void Publish(const State& state);

 private:
  void StoreState(const State& state);
  uint64_t Committed(const uint64_t CommitRecord::* field) const;
  explicit ControlFile(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  CommitRecord& record(uint64_t epoch) const {
    return *reinterpret_cast<CommitRecord*>(file_->data() + kRecordOffset +
                                            (epoch & 1) * kRecordBytes);
  }
  std::unique_ptr<MappedFile> file_;
  std::mutex mutex_;
  std::unique_ptr<MappedFile> writable_;  // the same once more, for announcements
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_CONTROL_FILE_H_
