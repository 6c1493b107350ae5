#include "core/base/crc32.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/base/reflected_crc.h"
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

// Compares every path with the definition, at lengths of whole buffers. A machine normally uses
// only one of the paths.
template <uint32_t kReversed>
void ExpectAllPathsAgree() {
  using Remainder = ReflectedCrc<kReversed>;
  const std::vector<unsigned char> bytes = RandomBytes((2 << 20) + 100);
  for (const size_t n : {64, 127, 4096, 100'003, 2 << 20, (2 << 20) + 77}) {
    for (size_t offset = 0; offset < 20; offset += 7) {
      const unsigned char* const p = &bytes[offset];
      const uint32_t expected = CrcReference(kReversed, p, n);
      EXPECT_EQ(~Remainder::Extend(~0u, p, n), expected) << n;
#ifdef TSPS_CRC_X86
      if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        EXPECT_EQ(~Remainder::ExtendFolded(~0u, p, n), expected) << n;
      }
#endif
      const uint32_t first = CrcReference(kReversed, p, 50),
                     rest = CrcReference(kReversed, p + 50, n - 50);
      EXPECT_EQ(Remainder::Shift(first, n - 50) ^ rest, expected) << n;
    }
  }
}

TEST(ReflectedCrc, AllPathsMatchTheDefinition) {
  ExpectAllPathsAgree<kPolynomial>();
  ExpectAllPathsAgree<0x82F63B78>();
}

// Shifts by more zero bytes than any memory has, in one step and in two.
TEST(ReflectedCrc, ShiftsAdd) {
  using Remainder = ReflectedCrc<kPolynomial>;
  const uint64_t far = uint64_t{1} << 40;
  const uint32_t crc = Remainder::Shift(0x12345678, far);
  EXPECT_EQ(Remainder::Shift(Remainder::Shift(0x12345678, far - 12345), 12345), crc);
  EXPECT_NE(crc, 0x12345678u);
}

}  // namespace
}  // namespace tsps
