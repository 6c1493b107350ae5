// FrequencySketch: how often keys that have no slot were used lately, approximately, in 6 bytes per
// slot of the cache.
//
// A line of 16 entries of 4 bytes, chosen by the key's hash, holds 16 other bits of the hash and a
// count; a key that is not in its line takes the place of the lowest count there. So most keys that
// come once are forgotten soon, and those that come often, about which the cache has to decide, are
// counted nearly exactly. What lost: a count-min sketch of the same size. Batches bring many more
// keys that come once than it has counters, and each of them makes others look frequent.
//
// Counts are what the weights of uses add up to, in 16 bits: a float's leading half, so that counts
// of 256 uses and more stay where they are.
#ifndef TFSPS_CORE_CACHE_FREQUENCY_SKETCH_H_
#define TFSPS_CORE_CACHE_FREQUENCY_SKETCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tsps {

class FrequencySketch {
 public:
  explicit FrequencySketch(uint32_t slots) : lines_(size_t{slots} * 3 / 32 + 4) {}

  size_t bytes() const { return lines_.capacity() * sizeof(Line); }
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&LineOf(hash)); }

  // A use that counts `weight`; returns what the key's uses count now.
  float Add(uint64_t hash, float weight);
  // The key's uses count this much from now on; 0 gives its entry away.
  void Set(uint64_t hash, float count);
  // All counts are multiplied by this.
  void Scale(float factor);

 private:
  struct alignas(64) Line {
    uint16_t hash[16] = {};
    uint16_t count[16] = {};  // 0: no entry
  };

  const Line& LineOf(uint64_t hash) const { return lines_[((hash >> 32) * lines_.size()) >> 32]; }
  // The entry of a key, or the one that it may take.
  static int EntryOf(const Line& line, uint16_t hash);

  std::vector<Line> lines_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_FREQUENCY_SKETCH_H_
