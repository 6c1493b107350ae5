#include "core/table/philox.h"

#include "core/base/simd.h"

#if defined(TSPS_HAS_AVX2)
#include <immintrin.h>
#endif

namespace tsps {
namespace {

void PortableBlocks(uint32_t key0, uint32_t key1, const uint64_t* keys, const uint64_t* blocks,
                    size_t n, uint32_t* words) {
  for (size_t i = 0; i < n; ++i, words += 4) {
    words[0] = static_cast<uint32_t>(keys[i]);
    words[1] = static_cast<uint32_t>(keys[i] >> 32);
    words[2] = static_cast<uint32_t>(blocks[i]);
    words[3] = static_cast<uint32_t>(blocks[i] >> 32);
    Philox4x32x10(key0, key1, words);
  }
}

#if defined(TSPS_HAS_AVX2)

// Pair joins the low halves of lanes to lanes of 64 bits. Store writes the words of a block after
// one another: `first` has words 0 and 1 of all blocks, and `second` words 2 and 3.

#pragma GCC push_options
#pragma GCC target("avx2")
namespace philox_avx2 {
using Vector = __m256i;
constexpr size_t kLanes = 4;
inline Vector All(uint64_t number) { return _mm256_set1_epi64x(static_cast<long long>(number)); }
inline Vector Load(const uint64_t* numbers) {
  return _mm256_loadu_si256(reinterpret_cast<const Vector*>(numbers));
}
inline Vector Xor(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
inline Vector High(Vector a) { return _mm256_srli_epi64(a, 32); }
inline Vector Multiply(Vector a, Vector b) { return _mm256_mul_epu32(a, b); }
inline Vector Pair(Vector low, Vector high) {
  return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xAA);
}
inline void Store(Vector first, Vector second, uint32_t* words) {
  const Vector even = _mm256_unpacklo_epi64(first, second);  // blocks 0 and 2
  const Vector odd = _mm256_unpackhi_epi64(first, second);   // blocks 1 and 3
  auto* const to = reinterpret_cast<Vector*>(words);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}
#include "core/table/philox_lanes.inc"
}  // namespace philox_avx2
#pragma GCC pop_options

// GCC 12 warns of its own intrinsics, which leave lanes without a value.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f")
namespace philox_avx512 {
using Vector = __m512i;
constexpr size_t kLanes = 8;
inline Vector All(uint64_t number) { return _mm512_set1_epi64(static_cast<long long>(number)); }
inline Vector Load(const uint64_t* numbers) { return _mm512_loadu_si512(numbers); }
inline Vector Xor(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
inline Vector High(Vector a) { return _mm512_srli_epi64(a, 32); }
inline Vector Multiply(Vector a, Vector b) { return _mm512_mul_epu32(a, b); }
inline Vector Pair(Vector low, Vector high) {
  return _mm512_mask_blend_epi32(0xAAAA, low, _mm512_slli_epi64(high, 32));
}
inline void Store(Vector first, Vector second, uint32_t* words) {
  const Vector low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const Vector high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  _mm512_storeu_si512(words, _mm512_permutex2var_epi64(first, low, second));
  _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(first, high, second));
}
#include "core/table/philox_lanes.inc"
}  // namespace philox_avx512
#pragma GCC pop_options
#pragma GCC diagnostic pop

#endif

}  // namespace

void PhiloxBlocks(uint32_t key0, uint32_t key1, const uint64_t* keys, const uint64_t* blocks,
                  size_t n, uint32_t* words) {
  size_t i = 0;
#if defined(TSPS_HAS_AVX2)
  static const bool avx512 = TSPS_HAS_AVX512 && __builtin_cpu_supports("avx512f");
  static const bool avx2 = __builtin_cpu_supports("avx2");
  for (; avx512 && n - i >= 16; i += 16) {
    philox_avx512::TwoVectors(key0, key1, keys + i, blocks + i, words + 4 * i);
  }
  for (; avx2 && n - i >= 8; i += 8) {
    philox_avx2::TwoVectors(key0, key1, keys + i, blocks + i, words + 4 * i);
  }
#endif
  PortableBlocks(key0, key1, keys + i, blocks + i, n - i, words + 4 * i);
}

}  // namespace tsps
