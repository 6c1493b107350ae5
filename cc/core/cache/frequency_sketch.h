// FrequencySketch: approximately counts the recent uses of keys that have no slot, in 6 bytes per
// slot of the cache.
//
// The key's hash chooses a line of 16 entries. An entry takes 4 bytes: 16 other bits of the hash,
// and a count. A key that is not in its line replaces the lowest count there. So the sketch soon
// forgets most keys that are used once, and counts frequent keys, about which the cache decides,
// nearly exactly. A count-min sketch of the same size was worse: batches contain many more keys
// that are used once than it has counters, and each of them makes other keys look frequent.
//
// A count is the sum of the weights of the uses, stored as the leading half of a float. From 256
// uses on it does not grow.
#ifndef TFSPS_CORE_CACHE_FREQUENCY_SKETCH_H_
#define TFSPS_CORE_CACHE_FREQUENCY_SKETCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/prefetch.h"

namespace tsps {

class FrequencySketch {
 public:
  explicit FrequencySketch(uint32_t slots) : lines_(size_t{slots} * 3 / 32 + 4) {}

  size_t bytes() const { return lines_.capacity() * sizeof(Line); }
  void Prefetch(uint64_t hash) const { PrefetchLine(&LineOf(hash)); }

  // Counts a use with this weight. Returns the key's count.
  float Add(uint64_t hash, float weight);
  // Sets the key's count; 0 frees its entry.
  void Set(uint64_t hash, float count);
  // Multiplies all counts by `factor`.
  void Scale(float factor);

 private:
  struct alignas(64) Line {
    uint16_t hash[16] = {};
    uint16_t count[16] = {};  // 0: no entry
  };

  const Line& LineOf(uint64_t hash) const { return lines_[((hash >> 32) * lines_.size()) >> 32]; }
  // Returns the entry of a key, or the entry that the key may replace.
  static int EntryOf(const Line& line, uint16_t hash);

  std::vector<Line> lines_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_FREQUENCY_SKETCH_H_
