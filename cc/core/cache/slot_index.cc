#include "core/cache/slot_index.h"

namespace tsps {

void SlotIndex::Erase(uint32_t hash, uint32_t slot) {
  const size_t n = buckets_.size();
  size_t hole = Home(hash);
  while (buckets_[hole].slot != slot + 1) hole = Next(hole);
  // An entry after the hole moves into it if its search passes the hole, that is, if the hole is
  // not before the entry's home.
  for (size_t i = Next(hole); buckets_[i].slot != 0; i = Next(i)) {
    const size_t from_home = (i + n - Home(buckets_[i].hash)) % n;
    const size_t from_hole = (i + n - hole) % n;
    if (from_home < from_hole) continue;
    buckets_[hole] = buckets_[i];
    hole = i;
  }
  buckets_[hole] = {};
}

}  // namespace tsps
