#include "core/dedupe.h"

#include <memory>

namespace tsps {
namespace {

// Ids looked ahead, so that a large table's slot is in cache when its id's turn comes. At 2M ids 10
// ms instead of 17 ms; no difference up to 200k, where the table fits the caches.
constexpr size_t kAhead = 16;

// Multiplication alone leaves the low bits of the key out of the low bits of the product's top
// half; ids are often consecutive or shifted left by a field number, hence the two rounds.
inline uint64_t Hash(int64_t key) {
  uint64_t x = static_cast<uint64_t>(key);
  x = (x ^ (x >> 32)) * 0x9E3779B97F4A7C15u;
  return (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
}

// Numbers keys from 0 in order of first occurrence. Open addressing with linear probing; a slot
// holds a key's number + 1, or 0, and the keys themselves stay in one dense array: no key value has
// to be reserved, and there is a quarter of the memory to clear and to walk that (key, number)
// slots would need.
class KeyNumbers {
 public:
  // For up to `capacity` keys, which fill at most 3/4 of the slots.
  explicit KeyNumbers(size_t capacity) : keys_(new int64_t[capacity]) {
    int bits = 3;
    while ((size_t{3} << bits) < 4 * capacity) ++bits;
    slots_.reset(new uint32_t[size_t{1} << bits]());
    mask_ = (size_t{1} << bits) - 1;
    shift_ = 64 - bits;
  }

  void Prefetch(int64_t key) const { __builtin_prefetch(&slots_[Hash(key) >> shift_]); }

  int32_t NumberOf(int64_t key) {
    for (size_t i = Hash(key) >> shift_;; i = (i + 1) & mask_) {
      const uint32_t slot = slots_[i];
      if (slot == 0) {
        keys_[size_] = key;
        slots_[i] = ++size_;
        return static_cast<int32_t>(size_ - 1);
      }
      if (keys_[slot - 1] == key) return static_cast<int32_t>(slot - 1);
    }
  }

  std::vector<int64_t> Keys() const { return {keys_.get(), keys_.get() + size_}; }

 private:
  std::unique_ptr<uint32_t[]> slots_;
  std::unique_ptr<int64_t[]> keys_;  // not a vector, which would clear it first
  size_t mask_ = 0;
  int shift_ = 0;
  uint32_t size_ = 0;
};

}  // namespace

// One thread, one table: 213k Zipf(1.05) ids with 55k keys take 1.0 ms, 2M ids with 279k keys 10 ms
// (AMD EPYC with 1 MiB of L2, best of 20 to 40 calls). What lost:
// - Slots of (key, number), 16 bytes: 1.2 ms, 29 ms.
// - Slots of (32 bits of the hash, number), 8 bytes: 1.1 ms, 12 ms.
// - A table that starts small and doubles: 1.6 ms.
// - 256 partitions by hash, a table each, by count and scatter: 1.7 ms, 20 ms; on 2 threads 0.9.
//
// Partitions should win from about three threads on, which was not measured; until then, spread the
// tables of a lookup over the threads whole.
std::vector<int64_t> Dedupe(const std::vector<IdSpan>& spans, Executor&) {
  size_t n = 0;
  for (const IdSpan& span : spans) n += span.n;
  KeyNumbers numbers(n);
  for (const IdSpan& span : spans) {
    const size_t with_prefetch = span.n > kAhead ? span.n - kAhead : 0;
    size_t i = 0;
    for (; i < with_prefetch; ++i) {
      numbers.Prefetch(span.ids[i + kAhead]);
      span.inverse[i] = numbers.NumberOf(span.ids[i]);
    }
    for (; i < span.n; ++i) span.inverse[i] = numbers.NumberOf(span.ids[i]);
  }
  return numbers.Keys();
}

}  // namespace tsps
