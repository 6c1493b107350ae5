#include "core/tier/use_counts.h"

namespace tsps {
namespace {

constexpr float kMostWeight = 1e20f;

}  // namespace

void UseCounts::Count(const uint32_t* rows, size_t n) {
  for (size_t i = 0; i < n; ++i) counts_[rows[i]] += weight_;
}

void UseCounts::Decay(float factor) {
  weight_ /= factor;
  if (weight_ < kMostWeight) return;
  for (float& count : counts_) count /= weight_;
  weight_ = 1.0f;
}

}  // namespace tsps
