// Compaction: copies the live records out of files that are mostly dead, so that the log can remove
// these files.
//
// A background thread reads a file slice by slice. The next mutation appends the copies together
// with its own records, and adds their index entries to its moves.
#ifndef TFSPS_CORE_TIER_COMPACTION_H_
#define TFSPS_CORE_TIER_COMPACTION_H_

#include <cstddef>
#include <cstdint>
#include <future>
#include <set>
#include <vector>

#include "core/base/status.h"
#include "core/tier/record_index.h"
#include "core/tier/record_log.h"

namespace tsps {

// Only the writer uses it, from one thread.
class Compaction {
 public:
  Compaction(RecordLog& log, const RecordIndex& index) : log_(log), index_(index) {}
  ~Compaction() { Await(); }
  Compaction(const Compaction&) = delete;
  Compaction& operator=(const Compaction&) = delete;

  // Records that were live when they were read.
  struct Slice {
    struct Copy {
      uint32_t place;
      int64_t key;
      const char* payload;  // in `records`
    };
    std::vector<Copy> copies;
    PageBuffer records;
    uint32_t file;
    uint32_t end_slot;
  };

  // Starts to read a slice of about `bytes`, unless a read is in progress, a slice is ready, or
  // compaction does not pay: the log may have 1.45 times the bytes of its live records plus two
  // files. `live` has the number of live records of each file.
  void ReadAhead(size_t bytes, const std::vector<uint32_t>& live);
  // Waits for the read in progress.
  void Await();
  // Returns the slice that was read, or null if none is ready. The slice is valid until Done(true).
  const Slice* Ready();
  // Ends the use of the slice. If `copied` is false, the log does not have the copies, and Ready
  // returns the slice again.
  void Done(bool copied);
  bool IsReading(uint32_t file) const { return file == file_; }
  void Forget(uint32_t file) { read_.erase(file); }

 private:
  uint32_t Choose(const std::vector<uint32_t>& live) const;
  Result<Slice> Read(uint32_t file, uint32_t slot, uint32_t n) const;

  RecordLog& log_;
  const RecordIndex& index_;
  uint32_t file_ = UINT32_MAX;
  uint32_t slot_ = 0;
  std::future<Result<Slice>> reading_;
  Slice slice_;
  bool ready_ = false;
  std::set<uint32_t> read_;  // files that were read to their ends, or cannot be read
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_COMPACTION_H_
