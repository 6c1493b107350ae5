// Filters of keys: sets that may also pass some keys which are not in them (1.3 % with 10 bits per
// key). They are split block filters (Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient
// Bloom Filters", WEA 2007): the bits of a key are in one block of 32 bytes, as in Apache Parquet.
#ifndef TFSPS_CORE_SERVING_KEY_FILTER_H_
#define TFSPS_CORE_SERVING_KEY_FILTER_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "core/base/status.h"
#include "core/serving/section_writer.h"
#include "core/serving/serving_layout.h"

namespace tsps {

// The block of a key follows from the leading bits of its hash, and its bits in the block from the
// trailing ones.
constexpr uint32_t kFilterOdd[8] = {0x47b6137bU, 0x44974d91U, 0x8824ad5bU, 0xa2b7289dU,
                                    0x705495c7U, 0x2df1424bU, 0x9efc4947U, 0x5c6bfb31U};

inline uint32_t FilterBit(uint64_t hash, size_t word) {
  return uint32_t{1} << ((static_cast<uint32_t>(hash) * kFilterOdd[word]) >> 27);
}

inline bool FilterHas(const FilterBlock& block, uint64_t hash) {
  uint32_t missing = 0;
  for (size_t word = 0; word < 8; ++word) missing |= FilterBit(hash, word) & ~block.words[word];
  return missing == 0;
}

// Writes a filter block by block, from two streams of hashes: one ascends, and the other comes with
// it.
class FilterWriter {
 public:
  // `blocks` is the number of blocks of the filter, which begins at the start of `section`.
  FilterWriter(uint64_t blocks, SectionWriter* section) : blocks_(blocks), section_(*section) {}

  // Adds a hash that is above all earlier ones of Add. All following hashes are above it.
  Status Add(uint64_t hash);
  // Adds a hash between that of the last Add and that of the next one.
  void AddEarlier(uint64_t hash);
  // Writes the remaining blocks.
  Status Finish();

 private:
  Status WriteTo(uint64_t block);

  const uint64_t blocks_;
  SectionWriter& section_;
  uint64_t written_ = 0;             // blocks
  std::deque<FilterBlock> pending_;  // the blocks from written_ on that have keys
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_KEY_FILTER_H_
