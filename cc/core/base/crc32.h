// CRC-32, as in zlib and PNG. Crc32("123456789") == 0xCBF43926.
#ifndef TFSPS_CORE_BASE_CRC32_H_
#define TFSPS_CORE_BASE_CRC32_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Extends `crc` (0 for the first piece) with n bytes.
uint32_t Crc32(uint32_t crc, const void* data, size_t n);

// Of what has the checksum `first`, and behind it n bytes that have the checksum `second`.
uint32_t Crc32OfJoined(uint32_t first, uint32_t second, uint64_t n);

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_CRC32_H_
