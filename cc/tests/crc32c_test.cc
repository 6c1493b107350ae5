#include "core/base/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/base/stream_copy.h"

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
  std::vector<unsigned char> bytes(300);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t n = 0; n < 290; ++n) {
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

// By its definition: words of 8 bytes in four streams, then the length and the streams' checksums.
uint32_t StripedReference(const unsigned char* data, size_t n) {
  std::vector<unsigned char> streams[4];
  for (size_t i = 0; i < (n + 7) / 8 * 8; ++i) streams[i / 8 % 4].push_back(i < n ? data[i] : 0);
  const uint64_t length = n;
  uint32_t crc = Reference(reinterpret_cast<const unsigned char*>(&length), sizeof(length));
  uint32_t crcs[4];
  for (size_t k = 0; k < 4; ++k) crcs[k] = Reference(streams[k].data(), streams[k].size());
  return Crc32c(crc, crcs, sizeof(crcs));
}

TEST(StripedCrc32c, IsThatOfTheWholeWhateverThePiecesAndCopiesThem) {
  std::mt19937 random(2);
  alignas(64) unsigned char bytes[1024];
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (size_t n : {0, 1, 7, 8, 9, 31, 32, 33, 64, 250, 256, 600, 1000}) {
    const uint32_t expected = StripedReference(bytes, n);
    for (size_t piece : {1, 4, 8, 24, 32, 64, 100, 256}) {
      for (size_t offset : {0, 3}) {
        StripedCrc32c added, copied;
        alignas(64) unsigned char copy[1024 + 8] = {};
        for (size_t at = 0; at < n; at += piece) {
          const size_t m = std::min(piece, n - at);
          added.Add(bytes + at, m);
          copied.AddCopy(bytes + at, m, copy + offset + at);
        }
        StreamFence();
        ASSERT_EQ(added.Value(), expected) << n << " bytes, " << piece << " at a time";
        ASSERT_EQ(copied.Value(), expected) << n << " bytes, " << piece << " at a time";
        ASSERT_EQ(std::memcmp(copy + offset, bytes, n), 0);
      }
    }
  }
}

}  // namespace
}  // namespace tsps
