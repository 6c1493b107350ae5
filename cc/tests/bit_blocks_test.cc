#include "core/wire/bit_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tsps {
namespace {

std::vector<uint8_t> Written(const std::vector<uint64_t>& numbers) {
  std::vector<uint8_t> code;
  AppendBitBlocks(numbers.data(), numbers.size(), &code);
  return {code.begin(), code.end()};  // no spare capacity, for AddressSanitizer
}

std::vector<uint64_t> Read(const uint8_t* code, size_t n) {
  std::vector<uint64_t> numbers;
  uint64_t block[kBitBlock];
  BitBlockReader reader(code, n);
  while (const size_t read = reader.Next(block)) numbers.insert(numbers.end(), block, block + read);
  return numbers;
}

std::vector<uint64_t> NumbersOfWidth(size_t n, int width, std::mt19937_64* random) {
  std::vector<uint64_t> numbers(n);
  for (uint64_t& x : numbers) x = width == 0 ? 0 : (*random)() >> (64 - width);
  if (n > 0 && width > 0) numbers[n / 2] |= uint64_t{1} << (width - 1);
  return numbers;
}

TEST(BitBlocks, HaveTheDocumentedBytes) {
  EXPECT_EQ(Written({}), (std::vector<uint8_t>{}));
  EXPECT_EQ(Written({0, 0, 0}), (std::vector<uint8_t>{0}));
  EXPECT_EQ(Written({1, 2, 3, 0, 2}), (std::vector<uint8_t>{2, 0b00111001, 0b10}));
  EXPECT_EQ(Written({0x1FF, 0, 1}), (std::vector<uint8_t>{9, 0xFF, 0x01, 0x04, 0}));
  std::vector<uint64_t> two_blocks(kBitBlock);
  two_blocks.push_back(5);
  EXPECT_EQ(Written(two_blocks), (std::vector<uint8_t>{0, 3, 5}));
}

TEST(BitBlocks, GiveBackNumbersOfEveryWidthAndLength) {
  std::mt19937_64 random(1);
  for (int width = 0; width <= 64; ++width) {
    for (size_t n : {1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 300}) {
      const std::vector<uint64_t> numbers = NumbersOfWidth(n, width, &random);
      const std::vector<uint8_t> code = Written(numbers);
      ASSERT_EQ(Read(code.data(), n), numbers) << width << ' ' << n;
      const Result<size_t> bytes = BitBlocksBytes(code.data(), code.size(), n, width);
      ASSERT_TRUE(bytes.ok()) << bytes.status().message();
      ASSERT_EQ(*bytes, code.size());
    }
  }
}

TEST(BitBlocks, FollowWhatIsThereAndHaveEachAWidth) {
  std::mt19937_64 random(2);
  std::vector<uint64_t> numbers;
  for (int width : {0, 64, 1, 33, 0, 57}) {
    const std::vector<uint64_t> block = NumbersOfWidth(kBitBlock, width, &random);
    numbers.insert(numbers.end(), block.begin(), block.end());
  }
  std::vector<uint8_t> code = {7, 7, 7};
  AppendBitBlocks(numbers.data(), numbers.size(), &code);
  EXPECT_EQ(code[2], 7);
  EXPECT_EQ(code.size(), 3 + 6 + 16 * (0 + 64 + 1 + 33 + 0 + 57));
  EXPECT_EQ(Read(code.data() + 3, numbers.size()), numbers);
}

TEST(BitBlocks, AreRefusedWhenCutOffOrTooWide) {
  std::mt19937_64 random(3);
  const std::vector<uint8_t> code = Written(NumbersOfWidth(200, 17, &random));
  for (size_t available = 0; available < code.size(); ++available) {
    const std::vector<uint8_t> cut(code.begin(), code.begin() + static_cast<long>(available));
    EXPECT_EQ(BitBlocksBytes(cut.data(), available, 200, 64).status().code(), Code::kDataLoss);
  }
  const Status status = BitBlocksBytes(code.data(), code.size(), 200, 16).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("17 bits wide"), std::string::npos) << status.message();
  EXPECT_EQ(BitBlocksBytes(code.data(), code.size(), SIZE_MAX, 64).status().code(),
            Code::kDataLoss);
}

}  // namespace
}  // namespace tsps
