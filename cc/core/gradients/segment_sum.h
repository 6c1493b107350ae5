// SegmentSum: sums the gradients of looked-up rows per unique key.
//
// The gradients of each key are added in input order (span by span, id by id) for any number of
// threads, so results are bit-reproducible.
#ifndef TFSPS_CORE_GRADIENTS_SEGMENT_SUM_H_
#define TFSPS_CORE_GRADIENTS_SEGMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"

namespace tsps {

struct GradientSpan {
  const float* rows;       // float[n, dim]
  const int32_t* inverse;  // int32[n], positions in [0, n_keys)
  size_t n;
};

// Overwrites `sums`, float[n_keys, dim]. InvalidArgument: an inverse is out of range; then `sums`
// has any content.
Status SegmentSum(const std::vector<GradientSpan>& spans, size_t n_keys, size_t dim, float* sums,
                  Executor& executor);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_SEGMENT_SUM_H_
