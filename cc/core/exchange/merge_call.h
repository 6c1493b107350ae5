#ifndef TFSPS_CORE_EXCHANGE_MERGE_CALL_H_
#define TFSPS_CORE_EXCHANGE_MERGE_CALL_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "core/gradients/merge.h"

namespace tsps {

// What the ranks of a node agree to do together.
struct MergeCall {
  std::string operation;  // names it, up to 127 characters; the same on all ranks
  int64_t step = 0;       // that it is part of; the same on all ranks
  Reduction reduction = Reduction::kSum;
  int64_t world_size = 1;                        // the divisor of kAverage
  double timeout_s = 0;                          // how long to wait for one rank
  const std::atomic<bool>* cancelled = nullptr;  // may be null; looked at ten times a second
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_MERGE_CALL_H_
