#ifndef TFSPS_CORE_EXCHANGE_REDUCED_GRADIENTS_H_
#define TFSPS_CORE_EXCHANGE_REDUCED_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/gradients/merge.h"

namespace tsps {

// The reduced gradients of a table. Those of earlier rounds are copies, because their shared memory
// is used again; those of the last round stay in shared memory.
class ReducedGradients {
 public:
  explicit ReducedGradients(size_t dim) : dim_(dim) {}
  ReducedGradients(const ReducedGradients&) = delete;  // sets point into copies
  ReducedGradients& operator=(const ReducedGradients&) = delete;
  ReducedGradients(ReducedGradients&&) = default;
  ReducedGradients& operator=(ReducedGradients&&) = default;
  size_t dim() const { return dim_; }
  const std::vector<GradientSet>& sets() const { return sets_; }
  size_t n() const;
  // Adds a set without a copy.
  void Add(const GradientSet& set) { sets_.push_back(set); }
  // Adds a copy of a set. Sets without a copy come after all copies.
  void AddCopy(const GradientSet& set);
  // Frees the memory of set `i`, if it is a copy.
  void Drop(size_t i);

 private:
  struct Copy {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::vector<float> rows;
  };
  size_t dim_;
  std::deque<Copy> copies_;  // a deque keeps the addresses
  std::vector<GradientSet> sets_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_REDUCED_GRADIENTS_H_
