// Index: maps keys to row numbers by extendible hashing over fixed segments, which are in the
// mapping.
//
//   hash(key):  | leading `depth` bits: directory entry -> segment | ... | low 32 bits: home entry
//   in the segment |
//
// A segment has 4092 entries of 16 bytes and uses linear probing. At most 4/5 of them are used, so
// a probe reads 1.3 cache lines on average. A full segment splits in two by its next hash bit (64
// KiB of work), so growth never rehashes the table. Erased entries become tombstones and vanish at
// the next split or compaction.
//
// Reads may race with the one writer. Every load is bounds-checked, and the caller checks the
// group's sequence word afterwards. A lost race returns garbage, but never reads outside of the
// files.
#ifndef TFSPS_CORE_TABLE_INDEX_H_
#define TFSPS_CORE_TABLE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/hash.h"
#include "core/table/layout.h"

namespace tsps {

// Returns the seed of a table's index. It depends on the group's seed, which is drawn at random,
// and on the table's uuid, so that nobody who chooses keys knows it. It affects the index only: not
// initial values, owners of keys, or the order of a merge.
uint64_t IndexSeed(uint64_t group_seed, const std::string& uuid);

// Returns whether a directory of `depth` may double. Hashes spread keys so evenly that a directory
// has a few entries per segment. If it has many, keys were chosen to collide, and the directory
// would grow without end.
constexpr uint64_t kMostEntriesPerSegment = 64;
inline bool MayDouble(uint32_t depth, uint32_t segments) {
  return depth < kMaxDepth && uint64_t{2} << depth <= kMostEntriesPerSegment * (segments + 1);
}

// Returns the entry of a segment where probing for a hash begins.
inline uint32_t HomeEntry(uint64_t hash) {
  return static_cast<uint32_t>(((hash & 0xFFFFFFFFu) * kSegmentEntries) >> 32);
}

// Returns the number of used entries beyond which a segment splits. Hashes fill all segments alike,
// so with one limit all of them would split within a few steps, and readers would wait (measured:
// 300 ms at 2.5 million keys). With spread limits a few split per step.
inline uint32_t SplitLimit(uint32_t segment) {
  return kSegmentLimit - segment * 2654435761u % kSegmentSpread;
}

// Returns the position in the directory file of the entry for `hash` at `depth`.
inline size_t DirectoryPosition(uint64_t hash, uint32_t depth) {
  return (size_t{1} << depth) + (depth == 0 ? 0 : hash >> (64 - depth));
}

// Loads and stores of words that the writer and readers share.
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

// Returns the entry of `key` in `segment`, or null. Race-free, and ends on garbage, too.
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

// --- For the writer only. ---

// Adds a key that the segment does not have. The segment must have an entry that was never used:
// the caller keeps used <= kSegmentLimit.
void InsertInSegment(Segment* segment, int64_t key, uint64_t hash, uint32_t row);

inline Entry* FindInSegment(Segment* segment, int64_t key, uint64_t hash) {
  return const_cast<Entry*>(FindInSegment(*segment, key, hash));
}
// Undoes the last InsertInSegment that was not undone yet. The segment is then exactly as before.
void RemoveInsert(Segment* segment, Entry* entry);
// Sets `used` to the number of used entries.
void RecountUsed(Segment* segment);

// Returns the number of live entries, without tombstones.
uint32_t LiveEntries(const Segment& segment);

// Rebuilds `low` from `image` without its tombstones. If `high` is not null, it gets the keys whose
// hash has bit `image.local_depth` set (bit 0 is the leading one). Overwrites both. `image` must be
// a copy, not one of the two.
void RebuildSegment(const Segment& image, uint64_t seed, Segment* low, Segment* high);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_INDEX_H_
