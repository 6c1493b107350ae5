#include "core/gradients/pooled_weight_gradient.h"

#include <cstdint>

#include "core/base/simd.h"

namespace tsps {
namespace {

constexpr size_t kWeightGrain = 256;  // bags
constexpr size_t kLanes = 16;

// Adds partial sums per lane in a fixed order, so that every clone returns the same bits.
TSPS_SIMD_CLONES float Dot(const float* a, const float* b, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += a[i + k] * b[i + k];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (size_t k = 0; k < kLanes; ++k) sum += lanes[k];
  return sum;
}

// Computes the gradients of the weights of one bag. With d_i = <gradient, row_i> they are:
//   sum     d_i
//   mean    (d_i - sum(w d) / W) / W,            W = sum(w)
//   sqrtn   (d_i - w_i sum(w d) / S^2) / S,      S = sqrt(sum(w^2))
void OneBag(const BagSpan& bags, size_t bag, const float* const* rows, size_t dim,
            const float* gradient, float* out) {
  const size_t begin = static_cast<size_t>(bags.splits[bag]);
  const size_t end = static_cast<size_t>(bags.splits[bag + 1]);
  const float divisor = BagDivisor(bags, bag);
  float weighted = 0;
  for (size_t i = begin; i < end; ++i) {
    out[i] = Dot(gradient, rows[bags.inverse[i]], dim);
    weighted += bags.weights[i] * out[i];
  }
  if (bags.combiner == Combiner::kSum) return;
  const bool mean = bags.combiner == Combiner::kMean;
  const float shift = weighted / (mean ? divisor : divisor * divisor);
  for (size_t i = begin; i < end; ++i) {
    out[i] = divisor == 0 ? 0 : (out[i] - (mean ? 1 : bags.weights[i]) * shift) / divisor;
  }
}

}  // namespace

void PooledWeightGradient(const BagSpan& bags, const float* const* rows, size_t dim,
                          const float* gradients, float* out, Executor& executor) {
  executor.ParallelFor(bags.n_bags, kWeightGrain, [&](size_t begin, size_t end) {
    for (size_t bag = begin; bag < end; ++bag) {
      OneBag(bags, bag, rows, dim, gradients + bag * dim, out);
    }
  });
}

}  // namespace tsps
