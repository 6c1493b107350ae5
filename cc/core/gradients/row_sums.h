// Sums of a batch's rows by the number of their key.
//
// Shared by segment sums, pooled gradients and the merge of ranks. Internal to the core.
#ifndef TFSPS_CORE_GRADIENTS_ROW_SUMS_H_
#define TFSPS_CORE_GRADIENTS_ROW_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"

namespace tsps {

// out += the sum of rows in order, element by element: ((out + rows[0]) + rows[1]) + ...
// Each row is multiplied by its weight first, unless `weights` is null.
void AddRows(const float* const* rows, const float* weights, size_t n, size_t dim, float* out);

struct RowSpan {
  const float* rows;                   // float[.., dim]
  const int32_t* inverse;              // int32[n], numbers of keys
  size_t n;                            // items
  const int32_t* positions = nullptr;  // int32[n], each item's row; null: the i-th has the i-th
  const float* weights = nullptr;      // float[n], what it is multiplied by; null: 1
};

// sums[k] = 0 + the rows of key k in the order of the input (span by span, item by item): float
// [n_keys, dim], overwritten. The bits do not depend on the number of threads.
//
// Rows are added as they come: they lie one after another, and the sums of a batch's frequent keys
// stay in the caches. InvalidArgument, with nothing promised of sums, if an inverse is not in [0,
// n_keys), or there are more than 2^31 - 1 items.
Status SumRowsByKey(const std::vector<RowSpan>& spans, size_t n_keys, size_t dim, float* sums,
                    Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_ROW_SUMS_H_
