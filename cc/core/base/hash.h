// The hash of a key.
#ifndef TFSPS_CORE_BASE_HASH_H_
#define TFSPS_CORE_BASE_HASH_H_

#include <cstdint>

namespace tsps {

// Returns the hash of a key. For each seed this is a bijection of 64-bit words (the finalizer of
// MurmurHash3), so distinct keys have distinct hashes. If keys were already selected by their hash
// (for a range of hashes, or a segment), hash them again with another seed: with the same one they
// would crowd in one place.
inline uint64_t HashKey(int64_t key, uint64_t seed) {
  uint64_t h = static_cast<uint64_t>(key) ^ seed;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ULL;
  h ^= h >> 33;
  return h;
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_HASH_H_
