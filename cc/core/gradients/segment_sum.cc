#include "core/gradients/segment_sum.h"

#include "core/gradients/rows_by_key.h"

namespace tsps {

Status SegmentSum(const std::vector<GradientSpan>& spans, size_t n_keys, size_t dim, float* sums,
                  Executor& executor) {
  RowsByKey by_key(n_keys, /*weighted=*/false);
  for (const GradientSpan& span : spans) TSPS_RETURN_IF_ERROR(by_key.Count(span.inverse, span.n));
  by_key.Allocate();
  for (const GradientSpan& span : spans) {
    for (size_t i = 0; i < span.n; ++i) by_key.Add(span.inverse[i], span.rows + i * dim, 1);
  }
  by_key.Sum(dim, sums, executor);
  return Status();
}

}  // namespace tsps
