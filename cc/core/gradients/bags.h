// Pooled lookups: sums of the rows of bags of ids, and the gradients of these rows.
//
// The rows of each key are added in input order, as in segment_sum.h.
#ifndef TFSPS_CORE_GRADIENTS_BAGS_H_
#define TFSPS_CORE_GRADIENTS_BAGS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"

namespace tsps {

enum class Combiner { kSum, kMean, kSqrtn };
Result<Combiner> CombinerFromName(const std::string& name);

// Bags of ids. Bag b contains items [splits[b], splits[b + 1]). `weights` is null (all 1) or
// float[n]. The combiners are those of tf.nn.embedding_lookup_sparse:
//
//   sum = sum(w x)    mean = sum(w x) / sum(w)    sqrtn = sum(w x) / sqrt(sum(w^2))
//
// The result of an empty bag, or of one whose divisor is 0, is zeros.
struct BagSpan {
  const int32_t* inverse;
  const int64_t* splits;  // int64[n_bags + 1]
  size_t n_bags;
  const float* weights;
  Combiner combiner;
};
// Returns the divisor of the weighted sum of bag b: 1, sum(w) or sqrt(sum(w^2)). It is 0 for an
// empty bag, unless the combiner is the sum.
float BagDivisor(const BagSpan& bags, size_t b);
// InvalidArgument unless splits start at 0, do not decrease, and end at n_items.
Status ValidateSplits(const int64_t* splits, size_t n_splits, size_t n_items);

// The forward pass: computes pooled[b] from unique rows. rows[k] points to row k, which may lie in
// the table.
void PoolBags(const BagSpan& bags, const float* const* rows, size_t dim, float* pooled,
              Executor& executor);

struct PooledGradientSpan {
  BagSpan bags;
  const float* gradients;  // float[n_bags, dim]
};
// The backward pass: spreads the gradients of bags over their ids, and sums them per unique key.
Status PooledSegmentSum(const std::vector<PooledGradientSpan>& spans, size_t n_keys, size_t dim,
                        float* sums, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_BAGS_H_
