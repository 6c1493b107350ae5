// LaneSum: a checksum that costs next to nothing beside reading, for what is large and only meant
// to be what it was. Not for what lies in files for long: that has a CRC.
//
// Fletcher's sums in four lanes: the bytes are words of 8, little-endian, word w is of lane w mod
// 4, and zeros fill the last 32 bytes. In each lane a is the sum of the words and b that of all a
// so far, modulo 2^64: so b knows the order.
#ifndef TFSPS_CORE_BASE_LANE_SUM_H_
#define TFSPS_CORE_BASE_LANE_SUM_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Of what comes in pieces. Those of a multiple of 32 bytes are fast.
class LaneSum {
 public:
  void Add(const void* data, size_t n);
  // The same, and copies the piece, past the caches if it can: whoever gives the copy to other
  // threads calls StreamFence() before.
  void AddCopy(const void* data, size_t n, void* to);
  // A CRC-32C of the sums and of how many bytes there were.
  uint32_t Value() const;

 private:
  static constexpr size_t kLanes = 4;
  static constexpr size_t kPiece = kLanes * sizeof(uint64_t);

  uint64_t a_[kLanes] = {};
  uint64_t b_[kLanes] = {};
  uint64_t bytes_ = 0;
  unsigned char rest_[kPiece] = {};  // of a piece that is not whole: bytes_ % kPiece
};

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_LANE_SUM_H_
