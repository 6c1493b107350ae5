// ControlFile: the control file of a group, with its identity, sequence word and commit records
// (layout.h).
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

// A copy of a commit record's content.
struct State {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t version = 0;
  uint32_t changes = 0;
  std::vector<TableState> tables;
  // CheckRecord (record_checks.h) uses these two: the recorded number of tables, and whether the
  // record has more tables after them.
  uint32_t recorded_tables = 0;
  bool more_tables = false;
};

// The numbers that are drawn at random when a group is created.
struct GroupDraw {
  uint64_t life = 0;  // not 0
  uint64_t index_seed = 0;

  // Returns new random numbers.
  static GroupDraw Random();
};

// A mutation that a writer has sealed (GroupWriter::Seal) and not published.
struct Sealed {
  uint64_t step = 0;
  uint64_t run_id = 0;
  uint32_t peers = 0;
};

// Methods for reading are thread-safe. Those for writing are for the one writer.
class ControlFile {
 public:
  // Creates the control file of an empty group. InvalidArgument: the uuid does not have 32
  // characters.
  static Result<std::unique_ptr<ControlFile>> Create(const std::string& path,
                                                     const std::string& uuid,
                                                     const GroupDraw& draw);
  // Maps an existing control file read-only. DataLoss: it is truncated, damaged, of another kind or
  // of another format.
  static Result<std::unique_ptr<ControlFile>> Open(const std::string& path);
  Status MakeWritable() { return file_->MakeWritable(); }

  std::string uuid() const;
  GroupDraw draw() const;
  MappedFile& file() { return *file_; }
  const std::string& path() const { return file_->path(); }
  // Returns the folder name of the table in a place. If another table gets the place meanwhile, the
  // result is garbage of a sane length; validate afterwards.
  std::string TableName(size_t place) const;
  LiveState& live() const { return *reinterpret_cast<LiveState*>(file_->data() + kLiveOffset); }

  // --- Reading. ---
  // Returns the sequence word.
  uint64_t sequence() const { return live().sequence.load(std::memory_order_acquire); }
  // Returns whether the sequence word still is `sequence` after everything that was read so far.
  bool Validate(uint64_t sequence) const;
  // Returns whether the epoch of `sequence` still is the committed one. Record e does not change
  // while epoch e + 1 is being written.
  bool ValidateEpoch(uint64_t sequence) const;
  // Copies the record of `epoch`. If a mutation races, the copy is garbage with a sane number of
  // tables; validate afterwards.
  void LoadState(uint64_t epoch, State* state) const;
  // Copies the last committed record, whatever the writer does meanwhile. Returns the sequence word
  // of that record; since then it can have become odd at most.
  uint64_t LoadLastState(State* state) const;
  // Return the step, and the version, of the last committed record.
  uint64_t CommittedStep() const;
  uint64_t CommittedVersion() const;
  // Removes the seal of a mutation. From then on it can only be undone.
  void Unseal() { live().sealed.epoch.store(0, std::memory_order_release); }
  // Returns whether the mutation of an odd sequence word is sealed. While it is, its undo log and
  // what it has written do not change.
  bool IsSealed(uint64_t sequence) const {
    return live().sealed.epoch.load(std::memory_order_acquire) == sequence / 2 + 1;
  }
  // Returns the sealed mutation that follows `epoch`, if there is one. DataLoss: it cannot be read.
  Result<std::optional<Sealed>> SealedAfter(uint64_t epoch) const;
  // Returns the words of LiveState.scans, writable, where scans announce themselves (scan_file.h).
  // Returns null if this process must not write, for example on a read-only file system.
  std::atomic<uint64_t>* Announcements();
  // Sleeps until the sequence word differs from `sequence`, but at most `ms`.
  void AwaitChange(uint64_t sequence, int ms) const;

  // --- Writing: the one writer, with the lock. ---
  // Sets the folder name of a vacant place.
  void SetTableName(size_t place, const std::string& name);
  // Declares the undo log valid for epoch + 1 and makes the sequence word odd. Readers wait until
  // the mutation is published or undone.
  void Begin(uint64_t epoch);
  // These surround writes that move entries of an index. Call EndRebuild after they are published.
  void BeginRebuild();
  void EndRebuild();
  // Between Begin and Publish: writes the record of `next` as that of epoch next.epoch, without
  // publishing it, and records that other groups take part in the decision.
  void Seal(const State& next, const Sealed& sealed);
  // Publishes `state` as epoch state.epoch and wakes waiting readers.
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
  std::unique_ptr<MappedFile> writable_;  // a second mapping of the file, for announcements
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_CONTROL_FILE_H_
