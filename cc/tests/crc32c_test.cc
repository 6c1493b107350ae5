#include "core/base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/crc_reference.h"

namespace tsps {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // its bits reversed

TEST(Crc32c, GivesThePublishedChecksums) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c(0, "", 0), 0u);
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(0, std::vector<char>(32, 0).data(), 32), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(0, std::vector<char>(32, '\xff').data(), 32), 0x62A8AB43u);
}

TEST(Crc32c, BothPathsMatchTheDefinitionAtEveryLengthAndAlignment) {
  const std::vector<unsigned char> bytes = RandomBytes(600);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t n = 0; n < 590; ++n) {
      const uint32_t expected = CrcReference(kPolynomial, &bytes[offset], n);
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
