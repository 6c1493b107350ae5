// Dedupe: finds the unique keys of a list of ids, and for every id the position of its key.
#ifndef TFSPS_CORE_GRADIENTS_DEDUPE_H_
#define TFSPS_CORE_GRADIENTS_DEDUPE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsps {

// One part of the input: the ids of one feature. Features that share a table are deduped together.
struct IdSpan {
  const int64_t* ids;
  size_t n;
  int32_t* inverse;  // the result: n positions in the unique keys
};

// Returns the unique keys of all spans, in order of first occurrence, and fills every inverse. The
// caller makes sure that the spans have at most 2^31 - 1 ids in all.
std::vector<int64_t> Dedupe(const std::vector<IdSpan>& spans);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_DEDUPE_H_
