// KeySet: keys, numbered from 0 in the order in which they come. It grows.
#ifndef TFSPS_CORE_GRADIENTS_KEY_SET_H_
#define TFSPS_CORE_GRADIENTS_KEY_SET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/hash.h"

namespace tsps {

// Open addressing with linear probing; a bucket holds a key's number + 1, or 0.
class KeySet {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t size() const { return keys_.size(); }
  // In the order of their numbers.
  const std::vector<int64_t>& keys() const { return keys_; }

  // Makes room for so many more.
  void Reserve(size_t n) {
    const size_t wanted = keys_.size() + n;
    keys_.reserve(wanted);
    size_t buckets = buckets_.empty() ? 16 : buckets_.size();
    while (3 * buckets < 4 * wanted) buckets *= 2;
    if (buckets != buckets_.size()) Rehash(buckets);
  }
  // At most 2^32 - 2 keys.
  void Add(int64_t key) {
    if (3 * buckets_.size() < 4 * (keys_.size() + 1)) Reserve(1);
    uint32_t& bucket = buckets_[Find(key, buckets_)];
    if (bucket != 0) return;
    keys_.push_back(key);
    bucket = static_cast<uint32_t>(keys_.size());
  }
  uint32_t NumberOf(int64_t key) const {
    return buckets_.empty() ? kNone : buckets_[Find(key, buckets_)] - 1;  // 0 - 1 is kNone
  }
  bool Has(int64_t key) const { return NumberOf(key) != kNone; }
  // Keeps the memory.
  void Clear() {
    std::fill(buckets_.begin(), buckets_.end(), 0);
    keys_.clear();
  }

 private:
  static constexpr uint64_t kSeed = 0x51ED270B7F4A7C15ULL;

  // The bucket of a key, or the one that it would get.
  size_t Find(int64_t key, const std::vector<uint32_t>& buckets) const {
    const size_t mask = buckets.size() - 1;
    size_t i = HashKey(key, kSeed) & mask;
    while (buckets[i] != 0 && keys_[buckets[i] - 1] != key) i = (i + 1) & mask;
    return i;
  }
  void Rehash(size_t n) {
    std::vector<uint32_t> buckets(n);
    for (size_t number = 0; number < keys_.size(); ++number) {
      buckets[Find(keys_[number], buckets)] = static_cast<uint32_t>(number + 1);
    }
    buckets_.swap(buckets);
  }

  std::vector<uint32_t> buckets_;  // a power of two of them
  std::vector<int64_t> keys_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_KEY_SET_H_
