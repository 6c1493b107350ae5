// Plans the reads of records: one read for records that lie close together.
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
  size_t first, n;  // the range of the ascending places whose records it contains
};

// Limits of a plan.
struct ReadCosts {
  size_t gap_bytes;  // the largest gap between two records of one read
  size_t max_bytes;  // the largest read, at least the pages of one record
};

// Plans the reads of n places, which must ascend.
std::vector<RecordRead> PlanReads(const RecordLayout& layout, const uint32_t* places, size_t n,
                                  const ReadCosts& costs);

// Returns the gap that makes a plan cheapest, 0 to 16 pages. The overhead of one read costs as much
// as reading `read_bytes`.
ReadCosts CheapestReads(const RecordLayout& layout, const uint32_t* places, size_t n,
                        size_t read_bytes, size_t max_bytes);

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_READS_H_
