// ReflectedCrc: 32-bit cyclic redundancy checks whose lowest bit is the coefficient of the highest
// power, for crc32.h and crc32c.h.
#ifndef TFSPS_CORE_BASE_REFLECTED_CRC_H_
#define TFSPS_CORE_BASE_REFLECTED_CRC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define TSPS_CRC_X86 1
#include <immintrin.h>
#endif

namespace tsps {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as little-endian");

inline uint64_t LoadWord(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// The check of a polynomial, whose bits are reversed. Remainders are those of the definition,
// before the final inversion.
template <uint32_t kPolynomial>
class ReflectedCrc {
 public:
  // Extends a remainder with n bytes by slicing-by-8 (Kounavis and Berry, "A Systematic Approach to
  // Building High Performance Software-Based CRC Generators", ISCC 2005).
  static uint32_t Extend(uint32_t crc, const unsigned char* p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
      const uint64_t word = LoadWord(p) ^ crc;
      crc = 0;
      for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
    }
    for (; n > 0; ++p, --n) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
    return crc;
  }

  // Returns whether this processor can run ExtendFolded, and n bytes are enough to make it faster.
  static bool Folds(size_t n) {
#ifdef TSPS_CRC_X86
    return n >= 256 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#else
    static_cast<void>(n);
    return false;
#endif
  }

#ifdef TSPS_CRC_X86
  // Extend for at least 64 bytes. It multiplies 16 bytes at a time by the power of x that
  // corresponds to their distance from later ones, and adds them to these (Gopal et al., "Fast CRC
  // Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). This is as fast
  // as reading from a cache.
  __attribute__((target("pclmul,sse4.1"))) static uint32_t ExtendFolded(uint32_t crc,
                                                                        const unsigned char* p,
                                                                        size_t n) {
    const __m128i far = _mm_set_epi64x(Factor(4 * 128 - 32), Factor(4 * 128 + 32));
    const __m128i near = _mm_set_epi64x(Factor(128 - 32), Factor(128 + 32));
    __m128i sums[4];
    for (size_t k = 0; k < 4; ++k) sums[k] = Load(p + 16 * k);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
      for (size_t k = 0; k < 4; ++k) sums[k] = Fold(sums[k], far, Load(p + 16 * k));
    }
    __m128i sum = sums[0];
    for (size_t k = 1; k < 4; ++k) sum = Fold(sum, near, sums[k]);
    for (; n >= 16; p += 16, n -= 16) sum = Fold(sum, near, Load(p));
    unsigned char rest[16];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), sum);
    return Extend(Extend(0, rest, sizeof(rest)), p, n);
  }
#endif

  // Returns the remainder of the same bytes followed by n zero bytes.
  static uint32_t Shift(uint32_t crc, uint64_t n) {
    uint32_t factor = PowerOfX(8);
    for (; n > 0; n >>= 1) {
      if ((n & 1) != 0) crc = Multiply(crc, factor);
      factor = Multiply(factor, factor);
    }
    return crc;
  }

 private:
  using Tables = std::array<std::array<uint32_t, 256>, 8>;

  static constexpr uint32_t kOne = 0x80000000;

  static constexpr uint32_t TimesX(uint32_t a) { return (a >> 1) ^ (a & 1 ? kPolynomial : 0); }

  static constexpr uint32_t PowerOfX(int n) {
    uint32_t power = kOne;
    for (int i = 0; i < n; ++i) power = TimesX(power);
    return power;
  }

  static constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a != 0; a <<= 1, b = TimesX(b)) {
      if ((a & kOne) != 0) product ^= b;
    }
    return product;
  }

  // tables[k][b] is the remainder of byte b followed by k zero bytes.
  static constexpr Tables MakeTables() {
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) crc = TimesX(crc);
      tables[0][byte] = crc;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        const uint32_t previous = tables[k - 1][byte];
        tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
      }
    }
    return tables;
  }
  static constexpr Tables kTables = MakeTables();

#ifdef TSPS_CRC_X86
  // Returns x^n, shifted by one bit, because the product of two reversed 64-bit numbers is one bit
  // too low.
  static constexpr int64_t Factor(int n) { return static_cast<int64_t>(PowerOfX(n)) << 1; }

  static __m128i Load(const unsigned char* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }

  __attribute__((target("pclmul,sse4.1"))) static __m128i Fold(__m128i sum, __m128i factors,
                                                               __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(sum, factors, 0x00);
    const __m128i high = _mm_clmulepi64_si128(sum, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
  }
#endif
};

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_REFLECTED_CRC_H_
