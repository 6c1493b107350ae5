#include "core/gradients/segment_sum.h"

#include "core/gradients/row_sums.h"

namespace tsps {

Status SegmentSum(const std::vector<GradientSpan>& spans, size_t n_keys, size_t dim, float* sums,
                  Executor& executor) {
  std::vector<RowSpan> rows;
  for (const GradientSpan& span : spans) rows.push_back({span.rows, span.inverse, span.n});
  return SumRowsByKey(rows, n_keys, dim, sums, executor);
}

}  // namespace tsps
