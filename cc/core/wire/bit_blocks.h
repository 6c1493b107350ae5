// Bit blocks: a list of unsigned numbers, coded in blocks of 128. All numbers of a block have the
// width of its largest number.
//
//   | width 0 | width 1 | ... | block 0 | block 1 | ... |      a width takes one byte
//
// The last block may be smaller. A width w is 0 to 64 bits. Number i of a block is its bits
// [i * w, (i + 1) * w), counted from the least significant bit of the first byte. A block begins at
// a byte; its unused last bits are 0.
//
// Measured with 80k sorted keys, coded as differences less 1: bytes per key, and microseconds to
// write and to read all keys on one thread (AMD EPYC, best of 20;
// `python tools/native.py bench wire 1 343000`):
//
//                                     blocks of 128        LEB128
//   ids of 1M, drawn by Zipf(1.05)    0.63   105    78     1.01    45    39
//   the same, hashed to 63 bits       6.17    78    83     7.00   267   197
//   any int64                         6.33    78    83     7.07   323   251
//
// With a few keys the two differ by some bytes. Blocks of 64 take up to 2.6 % fewer bytes, blocks
// of 256 up to 3 % more, in the same time.
#ifndef TFSPS_CORE_WIRE_BIT_BLOCKS_H_
#define TFSPS_CORE_WIRE_BIT_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"

namespace tsps {

constexpr size_t kBitBlock = 128;  // numbers

void AppendBitBlocks(const uint64_t* numbers, size_t n, std::vector<uint8_t>* out);

// Returns the bytes of the n numbers that are coded from `code` on. DataLoss: `available` bytes are
// too few, or a width is above `max_width`.
Result<size_t> BitBlocksBytes(const uint8_t* code, size_t available, size_t n, int max_width);

// Reads numbers that BitBlocksBytes has checked. The bytes must outlive the reader.
class BitBlockReader {
 public:
  BitBlockReader(const uint8_t* code, size_t n);
  // Writes the numbers of the next block, up to kBitBlock, and returns how many; 0 after the last.
  size_t Next(uint64_t* numbers);

 private:
  const uint8_t* width_;
  const uint8_t* block_;
  size_t left_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_BIT_BLOCKS_H_
