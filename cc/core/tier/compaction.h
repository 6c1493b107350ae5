// Compaction: copies live records out of files of a log that are mostly dead, so that these can be
// removed. Files are read in slices, in the background; the copies join the records that the next
// mutation appends, and their entries its moves.
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

// Of the writer; one thread.
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

  // Begins to read `bytes`, unless that is being done or does not pay: the log may have 1.45 times
  // the bytes of its live records, and two files more. `live`: how many records of each file are.
  void ReadAhead(size_t bytes, const std::vector<uint32_t>& live);
  // Waits for what is being read.
  void Await();
  // What has been read, if it has; null: nothing. It is kept until Done.
  const Slice* Ready();
  // The copies are the log's; or not, and will be asked for again.
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
  std::set<uint32_t> read_;  // to their ends, or cannot be
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_COMPACTION_H_
