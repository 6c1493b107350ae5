// UseCounts: how often each row in memory was used. Old uses count less and less (least frequently
// used, with decay). The counts decide which rows leave memory when others need their space.
//
// The counts take 4 bytes per row in the private memory of the writer. The count of a row that
// leaves is dropped: on Zipf-distributed keys (20 million rows, a quarter of them in memory),
// counts of absent rows gained nothing over announcing the rows of a pass ahead.
#ifndef TFSPS_CORE_TIER_USE_COUNTS_H_
#define TFSPS_CORE_TIER_USE_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/prefetch.h"

namespace tsps {

class UseCounts {
 public:
  // Sets the number of rows. Added rows have the count 0.
  void Resize(size_t rows) { counts_.resize(rows, 0.0f); }
  size_t rows() const { return counts_.size(); }
  size_t bytes() const { return counts_.capacity() * sizeof(float); }

  // Counts one use of each row.
  void Count(const uint32_t* rows, size_t n);
  void Forget(uint32_t row) { counts_[row] = 0.0f; }
  void Prefetch(uint32_t row) const { PrefetchLine(&counts_[row]); }
  // Returns a row's count, in units of a use that is counted now.
  float Of(uint32_t row) const { return counts_[row] / WeightOf(row); }
  // Multiplies all counts by `factor`, which is in (0, 1].
  void Decay(float factor);

 private:
  static constexpr float kMostWeight = 1e15f;

  float WeightOf(uint32_t row) const { return row < rescaled_ ? weight_ : weight_ * kMostWeight; }
  // Rescales the next n counts.
  void Rescale(size_t n);

  std::vector<float> counts_;
  float weight_ = 1.0f;  // of a use that is counted now: it grows, instead of all counts shrinking
  // A weight that is too large is divided by kMostWeight, and so are all counts, a part of them in
  // each step. Counts of rows from `rescaled_` on are not divided yet.
  size_t rescaled_ = SIZE_MAX;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_USE_COUNTS_H_
