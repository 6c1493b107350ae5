#include "core/wire/bit_blocks.h"

#include <algorithm>
#include <cstring>

namespace tsps {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are stored as they are in memory");

inline size_t BlocksOf(size_t n) { return n / kBitBlock + (n % kBitBlock != 0); }
inline size_t BytesOf(size_t n, int width) { return (n * static_cast<size_t>(width) + 7) / 8; }

// The words of a block. Writing the last number also touches the word after its own.
constexpr size_t kWords = kBitBlock + 1;

}  // namespace

void AppendBitBlocks(const uint64_t* numbers, size_t n, std::vector<uint8_t>* out) {
  size_t at_width = out->size();
  out->resize(at_width + BlocksOf(n));
  for (size_t first = 0; first < n; first += kBitBlock) {
    const uint64_t* const block = numbers + first;
    const size_t size = std::min(kBitBlock, n - first);
    uint64_t all = 0;
    for (size_t i = 0; i < size; ++i) all |= block[i];
    const int width = all == 0 ? 0 : 64 - __builtin_clzll(all);
    (*out)[at_width++] = static_cast<uint8_t>(width);
    uint64_t words[kWords] = {};
    size_t bit = 0;
    for (size_t i = 0; i < size; ++i, bit += static_cast<size_t>(width)) {
      const size_t shift = bit % 64;
      words[bit / 64] |= block[i] << shift;
      words[bit / 64 + 1] |= block[i] >> 1 >> (63 - shift);  // a shift by 64 is undefined
    }
    const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(words);
    out->insert(out->end(), bytes, bytes + BytesOf(size, width));
  }
}

Result<size_t> BitBlocksBytes(const uint8_t* code, size_t available, size_t n, int max_width) {
  const size_t blocks = BlocksOf(n);
  if (blocks > available) {
    return Error(Code::kDataLoss, "the widths of ", blocks, " blocks of ", n,
                 " numbers do not fit in ", available, " bytes");
  }
  size_t bytes = blocks;
  for (size_t b = 0; b < blocks; ++b) {
    if (code[b] > max_width) {
      return Error(Code::kDataLoss, "the numbers of block ", b, " are ", int{code[b]},
                   " bits wide; at most ", max_width, " were expected");
    }
    bytes += BytesOf(std::min(kBitBlock, n - b * kBitBlock), code[b]);
  }
  if (bytes > available) {
    return Error(Code::kDataLoss, "the ", n, " numbers take ", bytes, " bytes, but only ",
                 available, " are left");
  }
  return bytes;
}

BitBlockReader::BitBlockReader(const uint8_t* code, size_t n)
    : width_(code), block_(code + BlocksOf(n)), left_(n) {}

size_t BitBlockReader::Next(uint64_t* numbers) {
  const size_t size = std::min(kBitBlock, left_);
  if (size == 0) return 0;
  const int width = *width_;
  const size_t bytes = BytesOf(size, width);
  // Reads from a copy, because whole words reach beyond the end of the block, and perhaps of the
  // buffer.
  uint64_t words[kWords + 1];
  words[bytes / 8] = words[bytes / 8 + 1] = 0;
  std::memcpy(words, block_, bytes);
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  size_t bit = 0;
  for (size_t i = 0; i < size; ++i, bit += static_cast<size_t>(width)) {
    const size_t shift = bit % 64;
    numbers[i] = (words[bit / 64] >> shift | words[bit / 64 + 1] << 1 << (63 - shift)) & mask;
  }
  ++width_;
  block_ += bytes;
  left_ -= size;
  return size;
}

}  // namespace tsps
