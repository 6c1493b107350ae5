// The gradient of pooled lookups with respect to the weights of the ids.
#ifndef TFSPS_CORE_GRADIENTS_POOLED_WEIGHT_GRADIENT_H_
#define TFSPS_CORE_GRADIENTS_POOLED_WEIGHT_GRADIENT_H_

#include <cstddef>

#include "core/base/executor.h"
#include "core/gradients/bags.h"

namespace tsps {

// Computes out[i] = d(sum(gradients * pooled)) / d(weights[i]), where `pooled` is the result of
// PoolBags for `bags` (with weights) and `rows`, and `gradients` is float[n_bags, dim]. Items of a
// bag whose divisor is 0 get 0.
void PooledWeightGradient(const BagSpan& bags, const float* const* rows, size_t dim,
                          const float* gradients, float* out, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_POOLED_WEIGHT_GRADIENT_H_
