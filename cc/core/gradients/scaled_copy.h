// Copies of floats that are multiplied or divided by one number.
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

// Sets to[i] = from[i] * factor. A factor of 0 gives zeros, also for NaN and infinities.
void CopyMultiplied(const std::vector<FloatCopy>& copies, float factor, Executor& executor);
// Sets to[i] = from[i] / divisor. A divisor that is 0 or not finite gives zeros.
void CopyDivided(const std::vector<FloatCopy>& copies, float divisor, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_SCALED_COPY_H_
