// Merge: reduces the sparse gradients of several ranks to one gradient per key.
//
// The input is the ranks' sets in rank order. The gradients of a key are added in that order, in
// float32, so every node that merges the same input gets the same bits.
#ifndef TFSPS_CORE_GRADIENTS_MERGE_H_
#define TFSPS_CORE_GRADIENTS_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"

namespace tsps {

enum class Reduction {
  kFrequency,  // sum / number of ranks in which the key occurred
  kAverage,    // sum / world size
  kSum,        // sum
  kLocal,      // sum within one rank (a layer called twice): all counts of the result are 1
};
// Returns the reduction named "frequency", "average", "sum" or "local".
Result<Reduction> ReductionFromName(const std::string& name);

// The gradients of one rank, or of several ranks one after another.
struct GradientSet {
  const int64_t* keys;    // int64[n]
  const int32_t* counts;  // int32[n], as in key_count.h; null: each key is of one rank
  const float* rows;      // float[n, dim]
  size_t n;
};

// The gradients of one table: the sets of one or several senders.
struct TableSets {
  size_t dim = 0;
  std::vector<GradientSet> sets;
};

struct MergedGradients {
  std::vector<int64_t> keys;     // unique; their order depends on the input keys only
  std::vector<int32_t> counts;   // as in key_count.h
  std::vector<int32_t> inverse;  // the position in `keys` of each row of all sets, set after set
};

// The first step: finds unique keys, their counts, and the key of each input row.
Status MergeKeys(const std::vector<GradientSet>& sets, Reduction reduction,
                 MergedGradients* merged);
// The second step: overwrites `reduced`, float[merged.keys.size(), dim], with the reduced
// gradients.
Status MergeRows(const std::vector<GradientSet>& sets, size_t dim, const MergedGradients& merged,
                 Reduction reduction, int64_t world_size, float* reduced, Executor& executor);
// Returns the position of the first row of float[n, dim] with a NaN or an infinity, or -1.
int64_t FirstNonFiniteRow(const float* rows, size_t n, size_t dim, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_MERGE_H_
