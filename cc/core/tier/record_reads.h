// How records are read: near ones together.
#ifndef TFSPS_CORE_TIER_RECORD_READS_H_
#define TFSPS_CORE_TIER_RECORD_READS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tier/record_file.h"

namespace tsps {

// One read of whole pages of a file.
struct RecordRead {
  uint32_t file;
  size_t offset;
  size_t bytes;
  size_t first, n;  // of the ascending places, those of the records in it
};

// What a read costs, to the disk and to whoever waits: as much as so many bytes that are read
// along.
struct ReadCosts {
  size_t gap_bytes;  // pages that nobody wants are read along up to this many between two records
  size_t max_bytes;  // of a read, at least those of one record
};

// `places` ascend.
std::vector<RecordRead> PlanReads(const RecordLayout& layout, const uint32_t* places, size_t n,
                                  const ReadCosts& costs);

// The gap at which a plan is cheapest, where a read costs as much as `read_bytes`: 0 to 16 pages.
ReadCosts CheapestReads(const RecordLayout& layout, const uint32_t* places, size_t n,
                        size_t read_bytes, size_t max_bytes);

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_READS_H_
