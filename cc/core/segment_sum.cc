#include "core/segment_sum.h"

#include "core/bags.h"
#include "core/rows_by_key.h"

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

Status PooledSegmentSum(const std::vector<PooledGradientSpan>& spans, size_t n_keys, size_t dim,
                        float* sums, Executor& executor) {
  bool weighted = false;
  for (const PooledGradientSpan& span : spans) {
    weighted |= span.bags.weights != nullptr || span.bags.combiner != Combiner::kSum;
  }
  RowsByKey by_key(n_keys, weighted);
  for (const PooledGradientSpan& span : spans) {
    const BagSpan& bags = span.bags;
    const size_t n_items = static_cast<size_t>(bags.splits[bags.n_bags]);
    TSPS_RETURN_IF_ERROR(ValidateSplits(bags.splits, bags.n_bags + 1, n_items));
    TSPS_RETURN_IF_ERROR(by_key.Count(bags.inverse, n_items));
  }
  by_key.Allocate();
  for (const PooledGradientSpan& span : spans) {
    const BagSpan& bags = span.bags;
    for (size_t b = 0; b < bags.n_bags; ++b) {
      const float divisor = BagDivisor(bags, b);
      for (int64_t i = bags.splits[b]; i < bags.splits[b + 1]; ++i) {
        const float weight = bags.weights == nullptr ? 1.0f : bags.weights[i];
        by_key.Add(bags.inverse[i], span.gradients + b * dim,
                   divisor == 0 ? 0.0f : weight / divisor);
      }
    }
  }
  by_key.Sum(dim, sums, executor);
  return Status();
}

}  // namespace tsps
