// Copies of floats, each multiplied or divided by one number on its way.
#ifndef TFSPS_CORE_GRADIENTS_SCALED_COPY_H_
#define TFSPS_CORE_GRADIENTS_SCALED_COPY_H_

#include <cstddef>
#include <vector>

#include "core/base/executor.h"

namespace tsps {

struct FloatCopy {
  const float* from;
  float* to;
  size_t n;
};

// to[i] = from[i] * factor; zeros where the factor is 0, even of NaN and infinities.
void CopyMultiplied(const std::vector<FloatCopy>& copies, float factor, Executor& executor);
// to[i] = from[i] / divisor; zeros where the divisor is 0 or not finite.
void CopyDivided(const std::vector<FloatCopy>& copies, float divisor, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_SCALED_COPY_H_
