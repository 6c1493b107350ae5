#include "core/base/lane_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "core/base/crc32c.h"
#include "core/base/stream_copy.h"

namespace tsps {
namespace {

// The sum by its definition.
uint32_t Reference(const unsigned char* data, size_t n) {
  uint64_t a[4] = {}, b[4] = {};
  for (size_t w = 0; w < (n + 31) / 32 * 4; ++w) {
    uint64_t word = 0;
    for (size_t i = 0; i < 8 && 8 * w + i < n; ++i) word |= uint64_t{data[8 * w + i]} << (8 * i);
    a[w % 4] += word;
    b[w % 4] += a[w % 4];
  }
  const uint64_t length = n;
  return Crc32c(Crc32c(Crc32c(0, &length, sizeof(length)), a, sizeof(a)), b, sizeof(b));
}

TEST(LaneSum, IsThatOfTheWholeWhateverThePiecesAndCopiesThem) {
  std::mt19937 random(2);
  alignas(64) unsigned char bytes[1024];
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (size_t n : {0, 1, 7, 8, 9, 31, 32, 33, 64, 250, 256, 600, 1000, 1024}) {
    const uint32_t expected = Reference(bytes, n);
    for (size_t piece : {1, 4, 8, 24, 32, 64, 100, 256}) {
      for (size_t offset : {0, 3, 16}) {
        LaneSum added, copied;
        alignas(64) unsigned char copy[1024 + 32] = {};
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

TEST(LaneSum, NoticesWhatChangesAndWhatChangesPlaces) {
  alignas(64) unsigned char bytes[512];
  for (size_t i = 0; i < sizeof(bytes); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  const auto sum = [&](size_t n) {
    LaneSum lanes;
    lanes.Add(bytes, n);
    return lanes.Value();
  };
  const uint32_t before = sum(512);
  EXPECT_NE(sum(511), before);
  for (size_t i = 0; i < 8 * sizeof(bytes); ++i) {
    bytes[i / 8] ^= static_cast<unsigned char>(1 << i % 8);
    EXPECT_NE(sum(512), before) << i;
    bytes[i / 8] ^= static_cast<unsigned char>(1 << i % 8);
  }
  for (size_t i = 0; i + 64 <= sizeof(bytes); i += 32) {
    std::swap_ranges(bytes + i, bytes + i + 32, bytes + i + 32);
    EXPECT_NE(sum(512), before) << i;
    std::swap_ranges(bytes + i, bytes + i + 32, bytes + i + 32);
  }
  EXPECT_EQ(sum(512), before);
}

}  // namespace
}  // namespace tsps
