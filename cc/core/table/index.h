// Index: key -> row number, by extendible hashing over fixed segments, all of it in the mapping.
//
//   hash(key):  | leading `depth` bits: directory entry -> segment | ... | low 32 bits: home entry
//   in the segment |
//
// Within a segment, linear probing over 4092 entries of 16 bytes; at most 4/5 are used, so a probe
// touches 1.3 cache lines on average. A full segment splits in two by its next hash bit (64 KiB of
// work), so growth never rehashes the table. Erased entries become tombstones and vanish at the
// next split or compaction.
//
// Reads may race with the one writer: every load is bounds-checked, and the caller validates the
// result by the group's sequence word. What a lost race returns is garbage, never a wild access.
#ifndef TFSPS_CORE_TABLE_INDEX_H_
#define TFSPS_CORE_TABLE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/hash.h"
#include "core/table/layout.h"

namespace tsps {

// The seed of a table's index, from that of its group, which is drawn, and the table's uuid: not
// known to whoever chooses keys. It touches the index alone: neither initial values, nor owners of
// keys, nor the order of a merge.
uint64_t IndexSeed(uint64_t group_seed, const std::string& uuid);

// Whether a directory of `depth` may double. Hashes spread keys so evenly that a directory has a
// few entries for each segment. Many entries for each mean that keys were chosen to collide, and
// that the directory would grow without end.
constexpr uint64_t kMostEntriesPerSegment = 64;
inline bool MayDouble(uint32_t depth, uint32_t segments) {
  return depth < kMaxDepth && uint64_t{2} << depth <= kMostEntriesPerSegment * (segments + 1);
}

inline uint32_t HomeEntry(uint64_t hash) {
  return static_cast<uint32_t>(((hash & 0xFFFFFFFFu) * kSegmentEntries) >> 32);
}

// Used entries beyond which a segment splits. Hashes fill all segments alike; one limit for all
// would make them all split within a few steps, and readers wait (measured: 300 ms at 2.5 million
// keys). Spread, splits come a few per step.
inline uint32_t SplitLimit(uint32_t segment) {
  return kSegmentLimit - segment * 2654435761u % kSegmentSpread;
}

// Position in the directory region of the entry for `hash` at `depth`.
inline size_t DirectoryPosition(uint64_t hash, uint32_t depth) {
  return (size_t{1} << depth) + (depth == 0 ? 0 : hash >> (64 - depth));
}

inline uint32_t LoadRelaxed(const uint32_t& word) {
  return __atomic_load_n(&word, __ATOMIC_RELAXED);
}
inline int64_t LoadRelaxed(const int64_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
inline void StoreRelaxed(uint32_t& word, uint32_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELAXED);
}
inline void StoreRelaxed(int64_t& word, int64_t value) {
  __atomic_store_n(&word, value, __ATOMIC_RELAXED);
}

// Entry of `key` in `segment`, or null. Loads race-free; terminates on garbage.
inline const Entry* FindInSegment(const Segment& segment, int64_t key, uint64_t hash) {
  uint32_t at = HomeEntry(hash);
  for (uint32_t i = 0; i < kSegmentEntries; ++i) {
    const Entry& entry = segment.entries[at];
    const uint32_t row_plus_one = LoadRelaxed(entry.row_plus_one);
    if (row_plus_one == 0) return nullptr;
    if (LoadRelaxed(entry.key) == key && row_plus_one != kTombstone) return &entry;
    if (++at == kSegmentEntries) at = 0;
  }
  return nullptr;
}

// --- Writer only. ---

// Adds a key that is not there. The segment has a never-used entry (the caller keeps used <=
// kSegmentLimit).
void InsertInSegment(Segment* segment, int64_t key, uint64_t hash, uint32_t row);

inline Entry* FindInSegment(Segment* segment, int64_t key, uint64_t hash) {
  return const_cast<Entry*>(FindInSegment(*segment, key, hash));
}
// Takes back the last InsertInSegment that is not taken back: the segment is what it was before.
void RemoveInsert(Segment* segment, Entry* entry);
// Sets `used`.
void RecountUsed(Segment* segment);

// Live entries, tombstones not counted.
uint32_t LiveEntries(const Segment& segment);

// Rebuilds `low` from `image` without its tombstones; with `high`, keys whose bit
// `image.local_depth` of the hash (0: leading) is set go there. Overwrites both; `image` is a copy,
// not one of them.
void RebuildSegment(const Segment& image, uint64_t seed, Segment* low, Segment* high);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_INDEX_H_
