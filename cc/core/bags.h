// What the forward and the backward of pooled lookups share. Internal to the core.
#ifndef TFSPS_CORE_BAGS_H_
#define TFSPS_CORE_BAGS_H_

#include "core/segment_sum.h"

namespace tsps {

// What the weighted sum of bag b is divided by: 1, sum(w) or sqrt(sum(w^2)); 0 for an empty bag,
// unless the combiner is the sum.
float BagDivisor(const BagSpan& bags, size_t b);

}  // namespace tsps

#endif  // TFSPS_CORE_BAGS_H_
