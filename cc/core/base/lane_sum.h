// LaneSum: a checksum that costs almost nothing in addition to reading the data. It serves large
// data that stay in memory for a short time; files that are kept have a CRC.
//
// The sums are Fletcher's, in four lanes. Data are little-endian words of 8 bytes; word w belongs
// to lane w mod 4, and zeros fill the last 32 bytes. In each lane, `a` is the sum of the words, and
// `b` is the sum of all values that `a` has had, modulo 2^64. So b depends on the order of the
// words.
#ifndef TFSPS_CORE_BASE_LANE_SUM_H_
#define TFSPS_CORE_BASE_LANE_SUM_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// The checksum of data that arrive in pieces. Pieces of a multiple of 32 bytes are fast. Not
// thread-safe.
class LaneSum {
 public:
  // Adds the next n bytes.
  void Add(const void* data, size_t n);
  // Adds the next n bytes and copies them to `to`, past the caches where the processor can. Call
  // StreamFence() before other threads read the copy.
  void AddCopy(const void* data, size_t n, void* to);
  // Returns a CRC-32C of the sums and of the number of bytes.
  uint32_t Value() const;

 private:
  static constexpr size_t kLanes = 4;
  static constexpr size_t kPiece = kLanes * sizeof(uint64_t);

  uint64_t a_[kLanes] = {};
  uint64_t b_[kLanes] = {};
  uint64_t bytes_ = 0;
  unsigned char rest_[kPiece] = {};  // the first bytes_ % kPiece bytes of an incomplete piece
};

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_LANE_SUM_H_
