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
#include <cstring>
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
  float Of(uint32_t row) const { return counts_[row] / weight_; }
  // Multiplies all counts by `factor`, which is in (0, 1].
  void Decay(float factor);

  // Appends to `rows` the n rows with the lowest counts for which may_go(row) is true, or all such
  // rows if they are fewer. The choice between counts that differ by less than 1 in 128 is
  // arbitrary. Visits all rows twice.
  template <typename MayGo>
  void Lowest(size_t n, const MayGo& may_go, std::vector<uint32_t>* rows) const;

 private:
  static constexpr size_t kClasses = size_t{1} << 16;
  // Returns the leading half of a count's bits, which ascends with the count, because counts are
  // not negative.
  static size_t ClassOf(float count) {
    uint32_t bits;
    std::memcpy(&bits, &count, sizeof(bits));
    return bits >> 16;
  }

  std::vector<float> counts_;
  float weight_ = 1.0f;  // of a use that is counted now: it grows, instead of all counts shrinking
};

template <typename MayGo>
void UseCounts::Lowest(size_t n, const MayGo& may_go, std::vector<uint32_t>* rows) const {
  if (n == 0) return;
  std::vector<uint32_t> in_class(kClasses, 0);
  for (uint32_t row = 0; row < counts_.size(); ++row) {
    if (may_go(row)) ++in_class[ClassOf(counts_[row])];
  }
  // All rows of the lowest classes leave, and some of the next class.
  size_t last = 0, left = n;
  while (last < kClasses - 1 && in_class[last] <= left) left -= in_class[last++];
  for (uint32_t row = 0; row < counts_.size(); ++row) {
    const size_t row_class = ClassOf(counts_[row]);
    if (row_class > last || (row_class == last && left == 0) || !may_go(row)) continue;
    left -= row_class == last;
    rows->push_back(row);
  }
}

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_USE_COUNTS_H_
