// The node of a job that owns the row of a key, for tables that are sharded over nodes.
#ifndef TFSPS_CORE_BASE_KEY_OWNER_H_
#define TFSPS_CORE_BASE_KEY_OWNER_H_

#include <cstdint>

#include "core/base/hash.h"

namespace tsps {

// Never changes: files of sharded tables, and their rows on disk, depend on it.
constexpr uint64_t kOwnerSeed = 0xA0761D6478BD642FULL;

// Returns the owner of a key, below `nodes`. The seed differs from all others, so that the keys of
// one owner spread evenly over the ranges of an exchange and over a table's index.
inline uint32_t OwnerOf(int64_t key, uint32_t nodes) {
  return static_cast<uint32_t>((static_cast<unsigned __int128>(HashKey(key, kOwnerSeed)) * nodes) >>
                               64);
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_KEY_OWNER_H_
