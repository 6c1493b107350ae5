#include "core/base/crc32c.h"

#include <array>
#include <cstring>

namespace tsps {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as little-endian");

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41 with its bits reversed

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: the checksum of byte b followed by k zero bytes.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
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
constexpr Tables kTables = MakeTables();

inline uint64_t Load64(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// Slicing-by-8 (Kounavis and Berry, "A Systematic Approach to Building High Performance
// Software-Based CRC Generators", ISCC 2005).
uint32_t ExtendPortable(uint32_t crc, const unsigned char* p, size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    const uint64_t word = Load64(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; n > 0; ++p, --n) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
  return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const unsigned char* p,
                                                       size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) wide = __builtin_ia32_crc32di(wide, Load64(p));
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = __builtin_ia32_crc32qi(crc, *p);
  return crc;
}

__attribute__((target("sse4.2"))) void FourSse42(const unsigned char* p, size_t part,
                                                 uint32_t crcs[4]) {
  uint64_t a = ~0u, b = ~0u, c = ~0u, d = ~0u;
  for (size_t i = 0; i < part; i += 8) {
    a = __builtin_ia32_crc32di(a, Load64(p + i));
    b = __builtin_ia32_crc32di(b, Load64(p + part + i));
    c = __builtin_ia32_crc32di(c, Load64(p + 2 * part + i));
    d = __builtin_ia32_crc32di(d, Load64(p + 3 * part + i));
  }
  crcs[0] = ~static_cast<uint32_t>(a);
  crcs[1] = ~static_cast<uint32_t>(b);
  crcs[2] = ~static_cast<uint32_t>(c);
  crcs[3] = ~static_cast<uint32_t>(d);
}
#endif

void Four(const unsigned char* p, size_t part, uint32_t crcs[4]) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("sse4.2")) return FourSse42(p, part, crcs);
#endif
  for (size_t k = 0; k < 4; ++k) crcs[k] = ~ExtendPortable(~0u, p + k * part, part);
}

}  // namespace

uint32_t Crc32cOfParts(uint32_t crc, const void* data, size_t n) {
  const unsigned char* const p = static_cast<const unsigned char*>(data);
  const size_t part = n / 32 * 8;
  uint32_t crcs[4];
  Four(p, part, crcs);
  crcs[3] = Crc32c(crcs[3], p + 4 * part, n - 4 * part);
  return Crc32c(crc, crcs, sizeof(crcs));
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t n) {
  const unsigned char* p = static_cast<const unsigned char*>(data);
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("sse4.2")) return ~ExtendSse42(~crc, p, n);
#endif
  return ~ExtendPortable(~crc, p, n);
}

namespace internal {
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t n) {
  return ~ExtendPortable(~crc, static_cast<const unsigned char*>(data), n);
}
}  // namespace internal

}  // namespace tsps
