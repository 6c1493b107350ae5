#include "core/base/crc32.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/crc_reference.h"

namespace tsps {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // its bits reversed

TEST(Crc32, GivesThePublishedChecksums) {
  EXPECT_EQ(Crc32(0, "123456789", 9), 0xCBF43926u);
  EXPECT_EQ(Crc32(0, "", 0), 0u);
  EXPECT_EQ(Crc32(0, std::vector<char>(32, 0).data(), 32), 0x190A55ADu);
}

TEST(Crc32, MatchesTheDefinitionAtEveryLengthAndAlignment) {
  const std::vector<unsigned char> bytes = RandomBytes(600);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t n = 0; n < 590; ++n) {
      ASSERT_EQ(Crc32(0, &bytes[offset], n), CrcReference(kPolynomial, &bytes[offset], n)) << n;
    }
  }
}

TEST(Crc32, ContinuesFromAnyCutAndJoinsAtIt) {
  const std::vector<unsigned char> bytes = RandomBytes(1500);
  const uint32_t whole = Crc32(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const size_t rest = bytes.size() - cut;
    const uint32_t first = Crc32(0, bytes.data(), cut);
    EXPECT_EQ(Crc32(first, bytes.data() + cut, rest), whole);
    EXPECT_EQ(Crc32OfJoined(first, Crc32(0, bytes.data() + cut, rest), rest), whole);
  }
}

}  // namespace
}  // namespace tsps
