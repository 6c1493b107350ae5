// CRC-32, as in zlib and PNG. Crc32("123456789") == 0xCBF43926.
#ifndef TFSPS_CORE_BASE_CRC32_H_
#define TFSPS_CORE_BASE_CRC32_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Returns the checksum of all bytes so far: `crc` is that of the bytes before (0: there are none),
// and `data` has the next n.
uint32_t Crc32(uint32_t crc, const void* data, size_t n);

// Returns the checksum of two pieces joined together, from their own checksums. The second piece
// has n bytes.
uint32_t Crc32OfJoined(uint32_t first, uint32_t second, uint64_t n);

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_CRC32_H_
