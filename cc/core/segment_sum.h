// Segment sums: gradients of looked-up rows, summed per unique key; and pooled lookups' forward and
// backward.
//
// Sums run in input order for each key (span by span, id by id), whatever the number of threads, so
// results are bit-reproducible.
#ifndef TFSPS_CORE_SEGMENT_SUM_H_
#define TFSPS_CORE_SEGMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/executor.h"
#include "core/status.h"

namespace tsps {

struct GradientSpan {
  const float* rows;       // float[n, dim]
  const int32_t* inverse;  // int32[n], positions in [0, n_keys)
  size_t n;
};

// sums: float[n_keys, dim], overwritten. Inverses out of range are an error, with nothing promised
// of sums.
Status SegmentSum(const std::vector<GradientSpan>& spans, size_t n_keys, size_t dim, float* sums,
                  Executor& executor);

enum class Combiner { kSum, kMean, kSqrtn };
Result<Combiner> CombinerFromName(const std::string& name);

// Bags of ids: bag b is items [splits[b], splits[b + 1]). `weights` is null (all 1) or float[n].
// The combiners are those of tf.nn.embedding_lookup_sparse: sum = sum(w x), mean = sum(w x) /
// sum(w), sqrtn = sum(w x) / sqrt(sum(w^2)). An empty bag, or one whose divisor is 0, gives zeros.
struct BagSpan {
  const int32_t* inverse;
  const int64_t* splits;  // int64[n_bags + 1]
  size_t n_bags;
  const float* weights;
  Combiner combiner;
};
// Splits must start at 0, not decrease, and end at n_items.
Status ValidateSplits(const int64_t* splits, size_t n_splits, size_t n_items);

// Forward: pooled[b] from unique rows `rows` (row k at rows[k], a pointer each; may point into the
// table).
void PoolBags(const BagSpan& bags, const float* const* rows, size_t dim, float* pooled,
              Executor& executor);

struct PooledGradientSpan {
  BagSpan bags;
  const float* gradients;  // float[n_bags, dim]
};
// Backward: gradients of bags, spread over their ids and summed per unique key.
Status PooledSegmentSum(const std::vector<PooledGradientSpan>& spans, size_t n_keys, size_t dim,
                        float* sums, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_SEGMENT_SUM_H_
