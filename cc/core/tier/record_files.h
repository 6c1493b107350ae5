// RecordFiles: the writer's list of the files of a record log, with the bytes and the live records
// of each.
//
// A file has a number, which is a part of the places of its records, and a sequence number of 64
// bits. Numbers are used again after files were removed, sequence numbers never.
#ifndef TFSPS_CORE_TIER_RECORD_FILES_H_
#define TFSPS_CORE_TIER_RECORD_FILES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/tier/io_threads.h"
#include "core/tier/record_file.h"

namespace tsps {

// Returns the numbers of the files in a log's folder, ascending.
std::vector<uint32_t> RecordFilesIn(const std::string& folder);

// Thread-safe, except for the counts of live records, which one thread changes and reads.
class RecordFiles {
 public:
  // `folder` and `layout` must outlive the object.
  RecordFiles(const std::string& folder, const RecordLayout& layout)
      : folder_(folder), layout_(layout) {}

  // Reads the header of each file. DataLoss, naming the path: a file does not belong to this log.
  Status Load(IoThreads& threads);
  // Makes all later sequence numbers larger than this one.
  void ContinueAfter(uint64_t sequence);
  bool Has(uint32_t number) const;
  RecordKind KindOf(uint32_t number) const;

  // Adds a file, which the caller creates. ResourceExhausted: the log has as many files as it can
  // have.
  Result<RecordFileId> Add(RecordKind kind);
  // Takes note of the size of a file, and of its removal.
  void Grow(uint32_t number, uint64_t bytes);
  void Remove(uint32_t number);

  size_t count() const;
  // Returns whether a file may have a number that another one had before.
  bool Reuses(const RecordFileId& id) const { return id.sequence > layout_.max_files(); }
  // Returns the bytes of all files.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Takes note that nothing is appended to a file any more.
  void End(uint32_t number);

  // --- Counts of live records. ---
  // Makes space for the counts of all files, so that Enter and Drop do not allocate memory.
  void ReserveCounts();
  bool HasCount(uint32_t number) const { return number < live_.size(); }
  void Enter(uint32_t number) { ++live_[number]; }
  void Drop(uint32_t number) {
    if (--live_[number] == 0) empty_.push_back(number);
  }
  uint32_t live(uint32_t number) const { return HasCount(number) ? live_[number] : 0; }
  // Calls remove(number) for each file that has no live records. If it returns false, the next call
  // tries again.
  void RemoveEmpty(const std::function<bool(uint32_t number)>& remove);
  // Returns the files whose copying frees most for what must be written, the best one first, of
  // those that have live records and may be chosen: as many as free `bytes`, but no more than
  // `most`. Old files are worth more.
  std::vector<uint32_t> Emptiest(size_t bytes, size_t most,
                                 const std::function<bool(uint32_t number)>& may) const;

 private:
  struct File {
    RecordKind kind = RecordKind::kRows;
    uint64_t sequence = 0;
    uint64_t bytes = 0;
  };

  void AddLocked(const RecordFileId& id, uint64_t bytes);

  const std::string& folder_;
  const RecordLayout& layout_;

  mutable std::mutex mutex_;                  // protects the next five
  std::unordered_map<uint32_t, File> files_;  // by number
  std::vector<uint32_t> ended_;
  uint32_t numbers_ = 0;  // all numbers are below it
  uint32_t next_number_ = 0;
  uint64_t next_sequence_ = 1;
  std::atomic<uint64_t> bytes_{0};

  std::vector<uint32_t> live_;   // by number
  std::vector<uint32_t> empty_;  // files to remove, unless they get live records again
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_FILES_H_
