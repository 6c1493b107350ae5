#include "core/tier/use_counts.h"

#include <cstring>

namespace tsps {
namespace {

constexpr float kMostWeight = 1e20f;
constexpr size_t kClasses = size_t{1} << 16;

// Of counts, which are no less than 0: the leading half of their bits ascends with them.
size_t ClassOf(float count) {
  uint32_t bits;
  std::memcpy(&bits, &count, sizeof(bits));
  return bits >> 16;
}

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

void UseCounts::Lowest(size_t n, const std::function<bool(uint32_t row)>& may_go,
                       std::vector<uint32_t>* rows) const {
  if (n == 0) return;
  std::vector<uint32_t> in_class(kClasses, 0);
  for (uint32_t row = 0; row < counts_.size(); ++row) {
    if (may_go(row)) ++in_class[ClassOf(counts_[row])];
  }
  // Whole classes from below, and a part of the next one.
  size_t last = 0, left = n;
  while (last < kClasses - 1 && in_class[last] <= left) left -= in_class[last++];
  for (uint32_t row = 0; row < counts_.size(); ++row) {
    if (!may_go(row)) continue;
    const size_t its = ClassOf(counts_[row]);
    if (its > last || (its == last && left == 0)) continue;
    left -= its == last;
    rows->push_back(row);
  }
}

}  // namespace tsps
