// Loads and stores of entries, segments and the directory of a record index that several processes
// read while one writes.
#ifndef TFSPS_CORE_TIER_RECORD_INDEX_ACCESS_H_
#define TFSPS_CORE_TIER_RECORD_INDEX_ACCESS_H_

#include <atomic>
#include <cstdint>

#include "core/tier/record_index_layout.h"

namespace tsps::record_index {

constexpr uint32_t kNowhere = UINT32_MAX;

inline uint32_t Load(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
inline uint32_t LoadRelaxed(const uint32_t& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
inline void Store(uint32_t& word, uint32_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELEASE);
}

inline uint32_t Home(uint64_t tag, uint32_t n_pages) {
  // A multiplication spreads the trailing bits over all 32: a deep directory uses some of them.
  const uint32_t spread = static_cast<uint32_t>(tag) * 0x9E3779B1u;
  return static_cast<uint32_t>((uint64_t{spread} * (n_pages * kPageEntries)) >> 32);
}

inline uint64_t TagAt(const IndexPage& page, uint32_t at) {
  return uint64_t{__atomic_load_n(&page.high[at], __ATOMIC_RELAXED)} << 32 |
         LoadRelaxed(page.low[at]);
}

inline void SetTag(IndexPage& page, uint32_t at, uint64_t tag) {
  __atomic_store_n(&page.low[at], static_cast<uint32_t>(tag), __ATOMIC_RELAXED);
  __atomic_store_n(&page.high[at], static_cast<uint8_t>(tag >> 32), __ATOMIC_RELAXED);
}

inline bool IsPlace(uint32_t word) { return word < kRemovedRecord; }

inline uint32_t Mask(uint32_t depth) { return (uint32_t{1} << depth) - 1; }

// Returns the first `depth` bits of a tag.
inline uint32_t Leading(uint64_t tag, uint32_t depth) {
  return static_cast<uint32_t>(tag >> (kTagBits - static_cast<int>(depth)));
}

inline bool Matches(uint64_t tag, const IndexSegment::State& state) {
  return Leading(tag, state.depth) == state.pattern;
}

// Returns whether an entry of a directory of some depth leads to a segment in this state.
inline bool MatchesEntry(uint32_t entry, uint32_t depth, const IndexSegment::State& state) {
  return entry >> (depth - state.depth) == state.pattern;
}

// Makes the segment's other state the valid one. A reader that sees a later write to the old pages
// also sees that the segment has moved.
inline void Move(IndexSegment& segment) {
  Store(segment.moves, segment.moves + 1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace tsps::record_index

#endif  // TFSPS_CORE_TIER_RECORD_INDEX_ACCESS_H_
