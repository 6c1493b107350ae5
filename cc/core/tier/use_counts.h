// UseCounts: how often rows in memory were used, old uses counting less and less (least frequently
// used, with decay). Says which rows leave memory when others need their places.
//
// 4 bytes per row, in the private memory of who chooses. A row that leaves is forgotten: measured
// on Zipf-distributed keys (20 million rows, a quarter in memory) histories of absent rows gain
// nothing over looking a pass ahead.
#ifndef TFSPS_CORE_TIER_USE_COUNTS_H_
#define TFSPS_CORE_TIER_USE_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tsps {

class UseCounts {
 public:
  // Row numbers are below this from now on; new rows have not been used.
  void Resize(size_t rows) { counts_.resize(rows, 0.0f); }
  size_t rows() const { return counts_.size(); }
  size_t bytes() const { return counts_.capacity() * sizeof(float); }

  // A use of each of the rows.
  void Count(const uint32_t* rows, size_t n);
  void Forget(uint32_t row) { counts_[row] = 0.0f; }
  void Prefetch(uint32_t row) const { __builtin_prefetch(&counts_[row]); }
  // In uses of now.
  float Of(uint32_t row) const { return counts_[row] / weight_; }
  // From here on what was counted counts `factor` of what it did; in (0, 1].
  void Decay(float factor);

  // Appends to `rows` the n rows with the lowest counts, of those that may go: all of them, if they
  // are fewer. Of rows whose counts differ by less than one in 128 any may be taken. Looks at all
  // rows, twice.
  template <typename MayGo>
  void Lowest(size_t n, const MayGo& may_go, std::vector<uint32_t>* rows) const;

 private:
  static constexpr size_t kClasses = size_t{1} << 16;
  // Of counts, which are no less than 0: the leading half of their bits ascends with them.
  static size_t ClassOf(float count) {
    uint32_t bits;
    std::memcpy(&bits, &count, sizeof(bits));
    return bits >> 16;
  }

  std::vector<float> counts_;
  float weight_ = 1.0f;  // of a use of now, in place of making all others less
};

template <typename MayGo>
void UseCounts::Lowest(size_t n, const MayGo& may_go, std::vector<uint32_t>* rows) const {
  if (n == 0) return;
  std::vector<uint32_t> in_class(kClasses, 0);
  for (uint32_t row = 0; row < counts_.size(); ++row) {
    if (may_go(row)) ++in_class[ClassOf(counts_[row])];
  }
  // Whole classes from below, and a part of the next one.
  size_t last = 0, left = n;
  while (last < kClasses - 1 && in_class[last] <= left) left -= in_class[last++];
  for (uint32_t row = 0; row < counts_.size(); ++row) {
    const size_t its = ClassOf(counts_[row]);
    if (its > last || (its == last && left == 0) || !may_go(row)) continue;
    left -= its == last;
    rows->push_back(row);
  }
}

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_USE_COUNTS_H_
