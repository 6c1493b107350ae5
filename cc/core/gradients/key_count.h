// The count of a key in gradients: an int32 with the number of ranks in which the key occurs and,
// for tables with admission, the number of its occurrences in training.
//
//   bits 0 to 15    ranks, at least 1
//   bits 16 to 23   occurrences, at most 255; 0 if the table does not count them
//
// Admission asks for at most 255 occurrences, so a larger number stays at 255.
#ifndef TFSPS_CORE_GRADIENTS_KEY_COUNT_H_
#define TFSPS_CORE_GRADIENTS_KEY_COUNT_H_

#include <algorithm>
#include <cstdint>

namespace tsps {

constexpr int32_t kMostRanks = 0xFFFF;
constexpr uint32_t kMostOccurrences = 0xFF;

inline int32_t RanksOf(int32_t count) { return count & kMostRanks; }
inline uint32_t OccurrencesOf(int32_t count) { return static_cast<uint32_t>(count) >> 16; }
// Returns the count of a key of one rank.
inline int32_t CountOfOneRank(uint32_t occurrences) {
  return static_cast<int32_t>(std::min(occurrences, kMostOccurrences) << 16 | 1);
}
// Adds `count` to `sum`, which is such a count or 0. Returns false, and adds nothing, if `count` is
// none or the ranks are too many.
inline bool AddCount(int32_t count, int32_t* sum) {
  const int32_t ranks = RanksOf(*sum) + RanksOf(count);
  if (RanksOf(count) < 1 || OccurrencesOf(count) > kMostOccurrences || ranks > kMostRanks) {
    return false;
  }
  const uint32_t occurrences =
      std::min(OccurrencesOf(*sum) + OccurrencesOf(count), kMostOccurrences);
  *sum = static_cast<int32_t>(occurrences << 16) | ranks;
  return true;
}

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_KEY_COUNT_H_
