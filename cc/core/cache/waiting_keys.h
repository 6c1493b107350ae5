// WaitingKeys: the keys without a slot that staged batches need, with the bits of these batches. It
// is a flat table, because each step adds and removes thousands of keys.
#ifndef TFSPS_CORE_CACHE_WAITING_KEYS_H_
#define TFSPS_CORE_CACHE_WAITING_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/hash.h"
#include "core/base/prefetch.h"

namespace tsps {

class WaitingKeys {
 public:
  struct Entry {
    int64_t key = 0;
    uint64_t written = 0;  // the number of the row's last write on the host
    uint16_t mask = 0;     // of the batches that need the key; 0: the entry is free
  };

  WaitingKeys() : entries_(kFewest) {}

  // Returns the entry of a key, or null. It is valid until the next Put or Remove.
  Entry* Find(int64_t key) {
    const size_t at = PlaceOf(key);
    return entries_[at].mask == 0 ? nullptr : &entries_[at];
  }
  const Entry* Find(int64_t key) const { return const_cast<WaitingKeys*>(this)->Find(key); }
  // Returns the entry of a key, or a new one. The caller must set a bit of its mask.
  Entry& Put(int64_t key) {
    if (2 * (n_ + 1) > entries_.size()) Grow();
    Entry& entry = entries_[PlaceOf(key)];
    if (entry.mask == 0) {
      entry = {key, 0, 0};
      ++n_;
    }
    return entry;
  }
  void Remove(Entry* entry) {
    // An entry that could not be found past a free entry moves into it.
    size_t free = static_cast<size_t>(entry - entries_.data());
    for (size_t at = Next(free); entries_[at].mask != 0; at = Next(at)) {
      const size_t home = HomeOf(entries_[at].key);
      const bool stays = free < at ? free < home && home <= at : free < home || home <= at;
      if (stays) continue;
      entries_[free] = entries_[at];
      free = at;
    }
    entries_[free] = {};
    --n_;
  }
  void Prefetch(int64_t key) const { PrefetchLine(&entries_[HomeOf(key)]); }
  size_t size() const { return n_; }

 private:
  static constexpr size_t kFewest = 64;

  size_t HomeOf(int64_t key) const { return HashKey(key, kSeed) & (entries_.size() - 1); }
  size_t Next(size_t at) const { return (at + 1) & (entries_.size() - 1); }
  size_t PlaceOf(int64_t key) const {
    size_t at = HomeOf(key);
    while (entries_[at].mask != 0 && entries_[at].key != key) at = Next(at);
    return at;
  }
  void Grow() {
    std::vector<Entry> before(2 * entries_.size());
    before.swap(entries_);
    for (const Entry& entry : before) {
      if (entry.mask != 0) entries_[PlaceOf(entry.key)] = entry;
    }
  }

  static constexpr uint64_t kSeed = 0x8CB92BA72F3D8DD7ULL;
  std::vector<Entry> entries_;  // their number is a power of two
  size_t n_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_WAITING_KEYS_H_
