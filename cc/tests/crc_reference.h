// Checksums that are computed from their definition, for tests.
#ifndef TFSPS_TESTS_CRC_REFERENCE_H_
#define TFSPS_TESTS_CRC_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tsps {

// The checksum of n bytes, computed bit by bit. `polynomial` has its bits reversed.
inline uint32_t CrcReference(uint32_t polynomial, const unsigned char* data, size_t n) {
  uint32_t crc = 0xFFFFFFFF;
  for (size_t i = 0; i < n; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? polynomial : 0);
  }
  return ~crc;
}

inline std::vector<unsigned char> RandomBytes(size_t n) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(n);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

}  // namespace tsps

#endif  // TFSPS_TESTS_CRC_REFERENCE_H_
