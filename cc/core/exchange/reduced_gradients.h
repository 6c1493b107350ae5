#ifndef TFSPS_CORE_EXCHANGE_REDUCED_GRADIENTS_H_
#define TFSPS_CORE_EXCHANGE_REDUCED_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/gradients/merge.h"

namespace tsps {

// A table's reduced gradients: what earlier rounds left, copied because their shared memory is used
// again, and the last round's where they lie.
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
  // Adds a set that stays where it lies.
  void Add(const GradientSet& set) { sets_.push_back(set); }
  // Adds a copy of a set. Sets that stay where they lie come after all copies.
  void AddCopy(const GradientSet& set);
  // Gives back the memory of set `i`, if it is a copy.
  void Drop(size_t i);

 private:
  struct Copy {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::vector<float> rows;
  };
  size_t dim_;
  std::deque<Copy> copies_;  // addresses stay
  std::vector<GradientSet> sets_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_REDUCED_GRADIENTS_H_
