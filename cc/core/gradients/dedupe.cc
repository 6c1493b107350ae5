#include "core/gradients/dedupe.h"

#include <memory>

#include "core/base/hash.h"

namespace tsps {
namespace {

// Ids looked ahead, so that a large table's bucket is in cache when its id's turn comes. At 2M ids
// 10 ms instead of 17 ms; no difference up to 200k, where the table fits the caches.
constexpr size_t kIdsAhead = 16;

// Numbers keys from 0 in order of first occurrence. Open addressing with linear probing; a bucket
// holds a key's number + 1, or 0, and the keys themselves stay in one dense array: no key value has
// to be reserved, and there is a quarter of the memory to clear and to walk that (key, number)
// buckets would need.
class KeyNumbers {
 public:
  // For up to `capacity` keys, which fill at most 3/4 of the buckets.
  explicit KeyNumbers(size_t capacity) : keys_(new int64_t[capacity]) {
    int bits = 3;
    while ((size_t{3} << bits) < 4 * capacity) ++bits;
    buckets_.reset(new uint32_t[size_t{1} << bits]());
    mask_ = (size_t{1} << bits) - 1;
    shift_ = 64 - bits;
    // Nobody knows it beforehand, so nobody can choose keys that crowd; no result depends on it.
    seed_ = reinterpret_cast<uintptr_t>(buckets_.get());
  }

  void Prefetch(int64_t key) const { __builtin_prefetch(&buckets_[Home(key)]); }

  int32_t NumberOf(int64_t key) {
    for (size_t i = Home(key);; i = (i + 1) & mask_) {
      const uint32_t number = buckets_[i];
      if (number == 0) {
        keys_[size_] = key;
        buckets_[i] = ++size_;
        return static_cast<int32_t>(size_ - 1);
      }
      if (keys_[number - 1] == key) return static_cast<int32_t>(number - 1);
    }
  }

  std::vector<int64_t> Keys() const { return {keys_.get(), keys_.get() + size_}; }

 private:
  size_t Home(int64_t key) const { return HashKey(key, seed_) >> shift_; }

  std::unique_ptr<uint32_t[]> buckets_;
  std::unique_ptr<int64_t[]> keys_;  // not a vector, which would clear it first
  uint64_t seed_ = 0;
  size_t mask_ = 0;
  int shift_ = 0;
  uint32_t size_ = 0;
};

}  // namespace

// One thread, one table: 213k Zipf(1.05) ids with 55k keys take 1.0 ms, 2M ids with 279k keys 10 ms
// (AMD EPYC with 1 MiB of L2, best of 20 to 40 calls). What lost:
// - Buckets of (key, number), 16 bytes: 1.2 ms, 29 ms.
// - Buckets of (32 bits of the hash, number), 8 bytes: 1.1 ms, 12 ms.
// - A table that starts small and doubles: 1.6 ms.
// - One with room for a quarter of the ids, which grows once: no faster with 55k keys of 213k ids;
//   1.9 times as long when all of them differ.
// - 256 partitions by hash, a table each, by count and scatter: 1.7 ms, 20 ms; on 2 threads 0.9.
//
// Partitions should win from about three threads on, which was not measured; until then, spread the
// tables of a lookup over the threads whole.
std::vector<int64_t> Dedupe(const std::vector<IdSpan>& spans) {
  size_t n = 0;
  for (const IdSpan& span : spans) n += span.n;
  KeyNumbers numbers(n);
  for (const IdSpan& span : spans) {
    const size_t with_prefetch = span.n > kIdsAhead ? span.n - kIdsAhead : 0;
    size_t i = 0;
    for (; i < with_prefetch; ++i) {
      numbers.Prefetch(span.ids[i + kIdsAhead]);
      span.inverse[i] = numbers.NumberOf(span.ids[i]);
    }
    for (; i < span.n; ++i) span.inverse[i] = numbers.NumberOf(span.ids[i]);
  }
  return numbers.Keys();
}

}  // namespace tsps
