// Bit blocks: a list of unsigned numbers in as few bits as the largest of each 128 needs.
//
//   | width 1 | width 1 | ... | block 0 | block 1 | ... |
//
// Every 128 numbers are a block, the last ones a smaller one. Number i of a block of width w, 0 to
// 64, is bits [i * w, (i + 1) * w) of the block, counted from the least significant bit of its
// first byte. A block begins at a byte; its unused last bits are 0.
//
// 80k sorted keys, as differences less 1: bytes per key; microseconds to write and to read all on
// one thread (AMD EPYC, best of 20; `python tools/native.py bench wire 1 343000`):
//
//                                     blocks of 128        LEB128
//   ids of 1M, drawn by Zipf(1.05)    0.63   105    78     1.01    45    39
//   the same, hashed to 63 bits       6.17    78    83     7.00   267   197
//   any int64                         6.33    78    83     7.07   323   251
//
// With a few keys the difference is some bytes either way. Blocks of 64 take up to 2.6 % fewer
// bytes, blocks of 256 up to 3 % more, in the same time.
#ifndef TFSPS_CORE_WIRE_BIT_BLOCKS_H_
#define TFSPS_CORE_WIRE_BIT_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"

namespace tsps {

constexpr size_t kBitBlock = 128;  // numbers

void AppendBitBlocks(const uint64_t* numbers, size_t n, std::vector<uint8_t>* out);

// Bytes of the n numbers that begin at `code`. DataLoss if `available` bytes are too few, or a
// width is above `max_width`.
Result<size_t> BitBlocksBytes(const uint8_t* code, size_t available, size_t n, int max_width);

// Reads numbers that BitBlocksBytes has found whole. The bytes must stay where they are.
class BitBlockReader {
 public:
  BitBlockReader(const uint8_t* code, size_t n);
  // Writes the next block's numbers, up to kBitBlock, and returns how many; 0 after the last.
  size_t Next(uint64_t* numbers);

 private:
  const uint8_t* width_;
  const uint8_t* block_;
  size_t left_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_BIT_BLOCKS_H_
