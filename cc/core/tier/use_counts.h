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
#include <functional>
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
  // In uses of now.
  float Of(uint32_t row) const { return counts_[row] / weight_; }
  // From here on what was counted counts `factor` of what it did; in (0, 1].
  void Decay(float factor);

  // Appends to `rows` the n rows with the lowest counts, of those that may go: all of them, if they
  // are fewer. Of rows whose counts differ by less than one in 128 any may be taken.
  void Lowest(size_t n, const std::function<bool(uint32_t row)>& may_go,
              std::vector<uint32_t>* rows) const;

 private:
  std::vector<float> counts_;
  float weight_ = 1.0f;  // of a use of now, in place of making all others less
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_USE_COUNTS_H_
