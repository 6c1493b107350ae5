// The hash of a key.
#ifndef TFSPS_CORE_BASE_HASH_H_
#define TFSPS_CORE_BASE_HASH_H_

#include <cstdint>

namespace tsps {

// For every seed a bijection of 64-bit words (the finalizer of MurmurHash3): distinct keys never
// share a whole hash. Whoever hashes keys that were chosen by another one's hash (a part of a hash
// space, a segment) uses another seed: with the same they would crowd in one place.
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
