// SlotIndex: maps a key to the slot of its row.
//
// The index uses open addressing with linear probing. A bucket contains 32 bits of the key's hash,
// which determine where the search begins, and the slot + 1. The keys are in the slots, so the
// caller checks whether a slot has the key; nearly every search needs one check, because the 32
// bits of other keys differ. Erase moves later entries into the hole, so no tombstones accumulate.
#ifndef TFSPS_CORE_CACHE_SLOT_INDEX_H_
#define TFSPS_CORE_CACHE_SLOT_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/prefetch.h"

namespace tsps {

class SlotIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Makes an index for up to `slots` keys, which fill at most 8/11 of the buckets: 11 bytes per
  // slot.
  explicit SlotIndex(uint32_t slots) : buckets_(size_t{slots} * 11 / 8 + 8) {}

  size_t bytes() const { return buckets_.capacity() * sizeof(Bucket); }
  void Prefetch(uint32_t hash) const { PrefetchLine(&buckets_[Home(hash)]); }

  // Returns the first slot whose 32 bits of the hash match, which is most likely the key's slot. A
  // caller can prefetch it.
  uint32_t Guess(uint32_t hash) const {
    for (size_t i = Home(hash); buckets_[i].slot != 0; i = Next(i)) {
      if (buckets_[i].hash == hash) return buckets_[i].slot - 1;
    }
    return kNone;
  }
  // Returns the slot of a key; kNone if it has no slot. has(slot) returns whether a slot has the
  // key.
  template <typename Has>
  uint32_t Find(uint32_t hash, const Has& has) const {
    for (size_t i = Home(hash); buckets_[i].slot != 0; i = Next(i)) {
      if (buckets_[i].hash == hash && has(buckets_[i].slot - 1)) return buckets_[i].slot - 1;
    }
    return kNone;
  }
  // Adds a key that has no slot.
  void Insert(uint32_t hash, uint32_t slot) {
    size_t i = Home(hash);
    while (buckets_[i].slot != 0) i = Next(i);
    buckets_[i] = {hash, slot + 1};
  }
  // Removes a key that has this slot.
  void Erase(uint32_t hash, uint32_t slot);
  void Clear() { std::fill(buckets_.begin(), buckets_.end(), Bucket{}); }

 private:
  struct Bucket {
    uint32_t hash = 0;
    uint32_t slot = 0;  // + 1; 0: none
  };

  size_t Home(uint32_t hash) const { return (uint64_t{hash} * buckets_.size()) >> 32; }
  size_t Next(size_t i) const { return i + 1 == buckets_.size() ? 0 : i + 1; }

  std::vector<Bucket> buckets_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_SLOT_INDEX_H_
