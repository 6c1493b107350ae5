#include "core/tier/use_counts.h"

#include <algorithm>

namespace tsps {
namespace {

// At the decay of Demotions this rescales all rows that a table can have, before the weight is too
// large once more.
constexpr size_t kRescaledAtOnce = size_t{1} << 17;

}  // namespace

void UseCounts::Count(const uint32_t* rows, size_t n) {
  for (size_t i = 0; i < n; ++i) counts_[rows[i]] += WeightOf(rows[i]);
}

void UseCounts::Rescale(size_t n) {
  if (rescaled_ == SIZE_MAX) return;
  const size_t end = std::min(counts_.size(), rescaled_ + n);
  for (size_t row = rescaled_; row < end; ++row) counts_[row] /= kMostWeight;
  rescaled_ = end < counts_.size() ? end : SIZE_MAX;
}

void UseCounts::Decay(float factor) {
  weight_ /= factor;
  if (weight_ >= kMostWeight) {
    Rescale(counts_.size());  // what is left
    weight_ /= kMostWeight;
    rescaled_ = 0;
  }
  Rescale(kRescaledAtOnce);
}

}  // namespace tsps
