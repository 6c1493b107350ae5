// Totals of what all logs of records of this process did on disks since it started.
#ifndef TFSPS_CORE_TIER_DISK_TOTALS_H_
#define TFSPS_CORE_TIER_DISK_TOTALS_H_

#include <atomic>
#include <cstdint>

namespace tsps {

struct DiskTotals {
  std::atomic<uint64_t> records{0};    // records read from a disk
  std::atomic<uint64_t> bytes{0};      // bytes of these reads, with the gaps between records
  std::atomic<uint64_t> late{0};       // records that a caller was waiting for (urgent reads)
  std::atomic<uint64_t> cached{0};     // records of urgent reads that were in the cache
  std::atomic<uint64_t> waited_ns{0};  // the time of urgent reads
  std::atomic<uint64_t> errors{0};     // reads and writes that failed, also those tried again

  static DiskTotals& OfProcess();
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_DISK_TOTALS_H_
