// Merge: the sparse gradients of several ranks become one gradient per key.
//
// Input are the ranks' sets in rank order. A key's gradients are added in that order, in float32,
// so every node that merges the same input gets the same bits.
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
  kLocal,      // sum within one rank (a layer called twice): counts come out as 1, not added up
};
// "frequency" | "average" | "sum" | "local".
Result<Reduction> ReductionFromName(const std::string& name);

// The gradient of one rank, or of several one after another.
struct GradientSet {
  const int64_t* keys;    // int64[n]
  const int32_t* counts;  // int32[n]: in how many ranks each key occurred; null: 1 each
  const float* rows;      // float[n, dim]
  size_t n;
};

// One table's gradients: one set, or those of several senders.
struct TableSets {
  size_t dim = 0;
  std::vector<GradientSet> sets;
};

struct MergedGradients {
  std::vector<int64_t> keys;     // unique; the order is a function of the input keys alone
  std::vector<int32_t> counts;   // per key: number of ranks
  std::vector<int32_t> inverse;  // of the rows of all sets, one set after another: their key
};

// Step one: finds unique keys and counts, and where each input row goes.
Status MergeKeys(const std::vector<GradientSet>& sets, Reduction reduction,
                 MergedGradients* merged);
// Step two: float[merged.keys.size(), dim], overwritten with the reduced gradients.
Status MergeRows(const std::vector<GradientSet>& sets, size_t dim, const MergedGradients& merged,
                 Reduction reduction, int64_t world_size, float* reduced, Executor& executor);
// Position of the first row of float[n, dim] with a NaN or an infinity, or -1.
int64_t FirstNonFiniteRow(const float* rows, size_t n, size_t dim, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_MERGE_H_
