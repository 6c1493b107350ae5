#include "core/base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace tsps {
namespace {

// One bit at a time, from the definition.
uint32_t Reference(const unsigned char* data, size_t n) {
  uint32_t crc = 0xFFFFFFFF;
  for (size_t i = 0; i < n; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

TEST(Crc32c, GivesThePublishedChecksums) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c(0, "", 0), 0u);
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(0, std::vector<char>(32, 0).data(), 32), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(0, std::vector<char>(32, '\xff').data(), 32), 0x62A8AB43u);
}

TEST(Crc32c, BothPathsMatchTheDefinitionAtEveryLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(600);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t n = 0; n < 590; ++n) {
      const uint32_t expected = Reference(&bytes[offset], n);
      ASSERT_EQ(Crc32c(0, &bytes[offset], n), expected);
      ASSERT_EQ(internal::Crc32cPortable(0, &bytes[offset], n), expected);
    }
  }
}

TEST(Crc32c, ContinuesFromAnyCut) {
  const char text[] = "the quick brown fox jumps over the lazy dog";
  const size_t n = sizeof(text) - 1;
  for (size_t cut = 0; cut <= n; ++cut) {
    EXPECT_EQ(Crc32c(Crc32c(0, text, cut), text + cut, n - cut), Crc32c(0, text, n));
    EXPECT_EQ(internal::Crc32cPortable(Crc32c(0, text, cut), text + cut, n - cut),
              Crc32c(0, text, n));
  }
}

}  // namespace
}  // namespace tsps
