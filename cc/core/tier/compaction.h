// Compaction: copies the live records out of files that are mostly dead, so that the log can remove
// these files.
//
// A background thread reads a file, writes copies of its live records to files of its own, and
// queues them. The writer of the group puts their places into the index, a part in each mutation.
// This changes no row, so it needs no undo: before and after it, an entry names a record with the
// same content.
#ifndef TFSPS_CORE_TIER_COMPACTION_H_
#define TFSPS_CORE_TIER_COMPACTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tier/record_appender.h"
#include "core/tier/record_files.h"
#include "core/tier/record_index.h"
#include "core/tier/record_log.h"
#include "core/tier/space_reserve.h"

namespace tsps {

// Belongs to the writer, and is used from one thread.
class Compaction {
 public:
  Compaction(RecordLog& log, const RecordIndex& index, RecordFiles& files);
  ~Compaction();
  Compaction(const Compaction&) = delete;
  Compaction& operator=(const Compaction&) = delete;

  // A record that was live when it was copied.
  struct Copy {
    uint64_t tag;
    uint32_t from, to;
  };

  // Allows the thread to read this many bytes more, and starts it if compaction pays: the log may
  // have 1.4 times the bytes of its live records, and a few files more. `may` tells which files
  // may be compacted.
  void Allow(size_t bytes, const std::function<bool(uint32_t number)>& may);
  // Waits for the thread.
  void Await();
  // Occupies a reserve that was taken again, as soon as there is space, after files were removed.
  void KeepReserve();
  // Returns whether copies are queued.
  bool HasQueued() const;
  // Calls apply(copy) for queued copies in their order, until it returns false. Allocates nothing.
  void Apply(const std::function<bool(const Copy& copy)>& apply);
  // Returns whether a file is read, or has copies that are still queued. It must not be removed.
  bool IsUsing(uint32_t number) const;
  // Returns the error of the last read of a file or write of copies; OK if it succeeded. The thread
  // tries again what has failed.
  const Status& status() const { return status_; }

 private:
  struct Round {
    size_t bytes_read = 0;
    Status status = {};
  };
  // Returns the bytes that the log has more than it may have.
  size_t Excess() const;
  void EndRound();
  // Copies slices of the files to read until `bytes` are read, or the last file ends.
  Round Copies(size_t bytes);
  Status CopySliceInto(const std::string& space, uint32_t file, uint32_t slots);
  size_t ReserveBytes() const;
  Status CopySlice(uint32_t file, uint32_t slots);
  void ChooseFiles(const std::function<bool(uint32_t number)>& may);
  Status Write(const std::vector<int64_t>& keys, const std::vector<const char*>& payloads,
               std::vector<Copy>* copies);

  RecordLog& log_;
  const RecordIndex& index_;
  RecordFiles& files_;
  RecordAppender appender_;
  SpaceReserve reserve_;
  std::future<Round> running_;
  size_t allowed_ = 0;  // bytes
  Status status_;
  std::set<uint32_t> read_;              // files that were read to their ends
  std::map<uint32_t, uint32_t> failed_;  // for how many choices files stay out after an error

  std::vector<uint32_t> to_read_;  // files; does not change while the thread runs
  // --- Of the thread while it runs, else of the writer. ---
  std::atomic<size_t> reading_{0};  // the position in to_read_ of the file that is read
  uint32_t slot_ = 0;               // the next one in that file
  std::atomic<bool> writing_{false}, ending_{false};

  mutable std::mutex mutex_;  // protects the rest
  std::vector<Copy> queue_;
  size_t next_ = 0;                    // the first copy in queue_ that is not applied
  std::map<uint32_t, size_t> queued_;  // the number of queued copies in each file
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_COMPACTION_H_
