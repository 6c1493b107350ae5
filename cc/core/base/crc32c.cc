#include "core/base/crc32c.h"

#include "core/base/reflected_crc.h"

namespace tsps {
namespace {

using Castagnoli = ReflectedCrc<0x82F63B78>;  // 0x1EDC6F41 with its bits reversed

#ifdef TSPS_CRC_X86
__attribute__((target("sse4.2"))) uint32_t ExtendSse42(uint32_t crc, const unsigned char* p,
                                                       size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) wide = __builtin_ia32_crc32di(wide, LoadWord(p));
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = __builtin_ia32_crc32qi(crc, *p);
  return crc;
}

__attribute__((target("sse4.2"))) void FourSse42(const unsigned char* p, size_t part,
                                                 uint32_t crcs[4]) {
  uint64_t a = ~0u, b = ~0u, c = ~0u, d = ~0u;
  for (size_t i = 0; i < part; i += 8) {
    a = __builtin_ia32_crc32di(a, LoadWord(p + i));
    b = __builtin_ia32_crc32di(b, LoadWord(p + part + i));
    c = __builtin_ia32_crc32di(c, LoadWord(p + 2 * part + i));
    d = __builtin_ia32_crc32di(d, LoadWord(p + 3 * part + i));
  }
  crcs[0] = ~static_cast<uint32_t>(a);
  crcs[1] = ~static_cast<uint32_t>(b);
  crcs[2] = ~static_cast<uint32_t>(c);
  crcs[3] = ~static_cast<uint32_t>(d);
}
#endif

void Four(const unsigned char* p, size_t part, uint32_t crcs[4]) {
#ifdef TSPS_CRC_X86
  if (__builtin_cpu_supports("sse4.2")) return FourSse42(p, part, crcs);
#endif
  for (size_t k = 0; k < 4; ++k) crcs[k] = ~Castagnoli::Extend(~0u, p + k * part, part);
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
#ifdef TSPS_CRC_X86
  if (Castagnoli::Folds(n)) return ~Castagnoli::ExtendFolded(~crc, p, n);
  if (__builtin_cpu_supports("sse4.2")) return ~ExtendSse42(~crc, p, n);
#endif
  return ~Castagnoli::Extend(~crc, p, n);
}

namespace internal {
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t n) {
  return ~Castagnoli::Extend(~crc, static_cast<const unsigned char*>(data), n);
}
}  // namespace internal

}  // namespace tsps
