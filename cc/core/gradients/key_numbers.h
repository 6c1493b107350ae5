// KeyNumbers: numbers keys from 0 in the order in which they are added.
#ifndef TFSPS_CORE_GRADIENTS_KEY_NUMBERS_H_
#define TFSPS_CORE_GRADIENTS_KEY_NUMBERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/prefetch.h"

namespace tsps {

// A hash table with open addressing and linear probing. A bucket has a key's number + 1, or 0; the
// keys are in one dense array. So no key value is reserved, and there is a quarter of the memory to
// clear and to access that (key, number) buckets would need. Not thread-safe.
class KeyNumbers {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit KeyNumbers(size_t capacity = 0) { Grow(capacity); }

  size_t size() const { return size_; }
  // Returns the keys in the order of their numbers.
  std::vector<int64_t> Keys() const { return {keys_.get(), keys_.get() + size_}; }

  // Makes space for `n` more keys, at most 2^32 - 2 in all.
  void Reserve(size_t n) {
    if (size_ + n > capacity_) Grow(std::max(size_ + n, 2 * capacity_));
  }
  void Prefetch(int64_t key) const { PrefetchLine(&buckets_[Home(key)]); }
  // Returns the number of a key, which is added if it is absent.
  uint32_t Add(int64_t key) {
    size_t bucket = BucketOf(key);
    if (buckets_[bucket] != 0) return buckets_[bucket] - 1;
    if (size_ == capacity_) {
      Reserve(1);
      bucket = BucketOf(key);
    }
    keys_[size_] = key;
    buckets_[bucket] = static_cast<uint32_t>(++size_);
    return static_cast<uint32_t>(size_ - 1);
  }
  // Returns the number of a key, or kNone.
  uint32_t NumberOf(int64_t key) const { return buckets_[BucketOf(key)] - 1; }  // 0 - 1 is kNone
  bool Has(int64_t key) const { return NumberOf(key) != kNone; }
  // Removes all keys and keeps the memory.
  void Clear() {
    std::fill_n(buckets_.get(), mask_ + 1, 0);
    size_ = 0;
  }

 private:
  size_t Home(int64_t key) const { return HashKey(key, seed_) >> shift_; }
  // Returns the bucket of a key, or the empty one that it would get.
  size_t BucketOf(int64_t key) const {
    size_t i = Home(key);
    while (buckets_[i] != 0 && keys_[buckets_[i] - 1] != key) i = (i + 1) & mask_;
    return i;
  }
  // At most 3/4 of the buckets are in use.
  void Grow(size_t capacity) {
    int bits = 3;
    while ((size_t{3} << bits) < 4 * capacity) ++bits;
    capacity_ = std::max(capacity, (size_t{3} << bits) / 4);
    std::unique_ptr<int64_t[]> keys(new int64_t[capacity_]);  // a vector would clear it first
    std::copy_n(keys_.get(), size_, keys.get());
    keys_ = std::move(keys);
    buckets_.reset(new uint32_t[size_t{1} << bits]());
    mask_ = (size_t{1} << bits) - 1;
    shift_ = 64 - bits;
    // Nobody knows the address beforehand, so nobody can choose keys that collide. No result
    // depends on it.
    seed_ = reinterpret_cast<uintptr_t>(buckets_.get());
    for (size_t number = 0; number < size_; ++number) {
      buckets_[BucketOf(keys_[number])] = static_cast<uint32_t>(number + 1);
    }
  }

  std::unique_ptr<uint32_t[]> buckets_;
  std::unique_ptr<int64_t[]> keys_;
  size_t size_ = 0, capacity_ = 0;
  uint64_t seed_ = 0;
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_KEY_NUMBERS_H_
