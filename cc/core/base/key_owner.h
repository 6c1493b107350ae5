// Which node of a job has the row of a key, where tables are partitioned over the nodes.
#ifndef TFSPS_CORE_BASE_KEY_OWNER_H_
#define TFSPS_CORE_BASE_KEY_OWNER_H_

#include <cstdint>

#include "core/base/hash.h"

namespace tsps {

// Part of what tables on disk and in files of a partitioned job are: never changes.
constexpr uint64_t kOwnerSeed = 0xA0761D6478BD642FULL;

// The owner among `nodes`, of a seed of its own: neither the ranges of an exchange nor the index of
// a table crowd.
inline uint32_t OwnerOf(int64_t key, uint32_t nodes) {
  return static_cast<uint32_t>((static_cast<unsigned __int128>(HashKey(key, kOwnerSeed)) * nodes) >>
                               64);
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_KEY_OWNER_H_
