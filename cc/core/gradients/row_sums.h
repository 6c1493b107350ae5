// Sums of a batch's rows by key. Segment sums, pooled gradients and the merge of ranks use them.
// Internal to the core.
#ifndef TFSPS_CORE_GRADIENTS_ROW_SUMS_H_
#define TFSPS_CORE_GRADIENTS_ROW_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"

namespace tsps {

// Adds rows to `out` in order, element by element: ((out + rows[0]) + rows[1]) + ... Each row is
// multiplied by its weight first, unless `weights` is null.
void AddRows(const float* const* rows, const float* weights, size_t n, size_t dim, float* out);

struct RowSpan {
  const float* rows;                   // float[.., dim]
  const int32_t* inverse;              // int32[n], the number of each item's key
  size_t n;                            // the number of items
  const int32_t* positions = nullptr;  // int32[n], each item's row; null: item i has row i
  const float* weights = nullptr;      // float[n], the factor of each item's row; null: 1
};

// Overwrites sums[k], float[n_keys, dim], with 0 + the rows of key k in the order of the input
// (span by span, item by item). The bits do not depend on the number of threads.
//
// Rows are added in the order in which they lie in memory, and the sums of a batch's frequent keys
// stay in the caches. InvalidArgument: an inverse is not in [0, n_keys), or there are more than
// 2^31 - 1 items; then `sums` has any content.
Status SumRowsByKey(const std::vector<RowSpan>& spans, size_t n_keys, size_t dim, float* sums,
                    Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_ROW_SUMS_H_
