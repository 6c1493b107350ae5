#include "core/table/index.h"

#include <cstring>

namespace tsps {

uint64_t IndexSeed(uint64_t group_seed, const std::string& uuid) {
  uint64_t seed = group_seed;
  for (const char digit : uuid) seed = HashKey(digit, seed);
  return seed;
}

void InsertInSegment(Segment* segment, int64_t key, uint64_t hash, uint32_t row) {
  uint32_t at = HomeEntry(hash);
  // Tombstones are not reused, so that undoing the inserts of a mutation restores the segment
  // exactly.
  while (segment->entries[at].row_plus_one != 0) {
    if (++at == kSegmentEntries) at = 0;
  }
  StoreRelaxed(segment->entries[at].key, key);
  StoreRelaxed(segment->entries[at].row_plus_one, row + 1);
  StoreRelaxed(segment->used, segment->used + 1);
}

void RemoveInsert(Segment* segment, Entry* entry) {
  StoreRelaxed(entry->row_plus_one, 0);
  StoreRelaxed(segment->used, segment->used - 1);
}

void RecountUsed(Segment* segment) {
  uint32_t used = 0;
  for (const Entry& entry : segment->entries) used += entry.row_plus_one != 0;
  StoreRelaxed(segment->used, used);
}

uint32_t LiveEntries(const Segment& segment) {
  uint32_t live = 0;
  for (const Entry& entry : segment.entries) {
    live += entry.row_plus_one != 0 && entry.row_plus_one != kTombstone;
  }
  return live;
}

namespace {

void ClearSegment(Segment* segment, uint32_t local_depth) {
  StoreRelaxed(segment->used, 0);
  StoreRelaxed(segment->local_depth, local_depth);
  for (Entry& entry : segment->entries) StoreRelaxed(entry.row_plus_one, 0);
}

}  // namespace

void RebuildSegment(const Segment& image, uint64_t seed, Segment* low, Segment* high) {
  const uint32_t depth = image.local_depth + (high != nullptr ? 1 : 0);
  ClearSegment(low, depth);
  if (high != nullptr) ClearSegment(high, depth);
  for (const Entry& entry : image.entries) {
    if (entry.row_plus_one == 0 || entry.row_plus_one == kTombstone) continue;
    const uint64_t hash = HashKey(entry.key, seed);
    const bool to_high = high != nullptr && ((hash >> (63 - image.local_depth)) & 1) != 0;
    InsertInSegment(to_high ? high : low, entry.key, hash, entry.row_plus_one - 1);
  }
}

}  // namespace tsps
