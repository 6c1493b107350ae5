#ifndef TFSPS_CORE_EXCHANGE_MERGE_CALL_H_
#define TFSPS_CORE_EXCHANGE_MERGE_CALL_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "core/gradients/merge.h"

namespace tsps {

// A call that all ranks of a node make together.
struct MergeCall {
  std::string operation;  // a name of up to 127 characters; the same on all ranks
  int64_t step = 0;       // the step to which it belongs; the same on all ranks
  Reduction reduction = Reduction::kSum;
  int64_t world_size = 1;                        // the divisor of kAverage
  double timeout_s = 0;                          // how long to wait for one rank
  const std::atomic<bool>* cancelled = nullptr;  // may be null; read ten times a second
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_MERGE_CALL_H_
