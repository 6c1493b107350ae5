// Philox4x32-10: a counter-based random generator (Salmon et al., "Parallel Random Numbers: As Easy
// as 1, 2, 3", SC 2011). For one key it is a bijection of its 128-bit counter.
#ifndef TFSPS_CORE_PHILOX_H_
#define TFSPS_CORE_PHILOX_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Blocks are computed this many at a time, word by word, so that the loops vectorize.
constexpr size_t kPhiloxLanes = 16;

struct PhiloxLanes {
  uint32_t word[4]
               [kPhiloxLanes];  // in: counters, out: random words; word w of lane l at word[w][l]
};

inline void Philox4x32x10(uint32_t key0, uint32_t key1, PhiloxLanes& x) {
  for (int round = 0; round < 10; ++round) {
    for (size_t lane = 0; lane < kPhiloxLanes; ++lane) {
      const uint64_t product0 = uint64_t{0xD2511F53} * x.word[0][lane];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * x.word[2][lane];
      const uint32_t word1 = x.word[1][lane], word3 = x.word[3][lane];
      x.word[0][lane] = static_cast<uint32_t>(product1 >> 32) ^ word1 ^ key0;
      x.word[1][lane] = static_cast<uint32_t>(product1);
      x.word[2][lane] = static_cast<uint32_t>(product0 >> 32) ^ word3 ^ key1;
      x.word[3][lane] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

}  // namespace tsps

#endif  // TFSPS_CORE_PHILOX_H_
