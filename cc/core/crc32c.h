// CRC-32C (Castagnoli), as in iSCSI and ext4. Crc32c("123456789") == 0xE3069283.
#ifndef TFSPS_CORE_CRC32C_H_
#define TFSPS_CORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Extends `crc` (0 for the first piece) with n bytes.
uint32_t Crc32c(uint32_t crc, const void* data, size_t n);

namespace internal {
// The same without the processor's instruction, for its test.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t n);
}  // namespace internal

}  // namespace tsps

#endif  // TFSPS_CORE_CRC32C_H_
