#include "core/base/crc32.h"

#include "core/base/reflected_crc.h"

namespace tsps {
namespace {

using Ieee = ReflectedCrc<0xEDB88320>;  // 0x04C11DB7 with its bits reversed

}  // namespace

uint32_t Crc32(uint32_t crc, const void* data, size_t n) {
  const auto* const p = static_cast<const unsigned char*>(data);
#ifdef TSPS_CRC_X86
  if (Ieee::Folds(n)) return ~Ieee::ExtendFolded(~crc, p, n);
#endif
  return ~Ieee::Extend(~crc, p, n);
}

// Both checksums contain the inversion of the definition, so it cancels out.
uint32_t Crc32OfJoined(uint32_t first, uint32_t second, uint64_t n) {
  return Ieee::Shift(first, n) ^ second;
}

}  // namespace tsps
