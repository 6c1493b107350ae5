// The files of a record index, which all processes of a job map.
//
//   records.directory   the header at 0; segment numbers from byte 4,096 on: the directory of depth
//                       d is words 2^d to 2^(d+1) - 1
//   records.segments    one IndexSegment per segment number
//   records.pages       pages of 455 entries
//   records.uses        if rows may be evicted: a RecordUse for each entry of each page
//
//   tag of a key: 40 bits of its hash
//   | 39: depth bits | ... | home: the trailing 32 bits are spread over the segment's entries: 0 |
//
// Tags of neighbouring segments follow each other, as in the index of the rows in memory, so that
// a sweep can visit the keys of a range of hashes (group/eviction_policy.h).
//
// A segment has 8 to 16 pages. A probe walks over its entries page after page, and continues at the
// first page after the last. A full segment grows by pages. When it would need a 17th page, it
// splits in two by its next bit. Its load is therefore never far below the limit, and a row takes
// 9 / 0.9 to 9 / 0.8 bytes, and 16 / 0.9 to 16 / 0.8 more with its use.
#ifndef TFSPS_CORE_TIER_RECORD_INDEX_LAYOUT_H_
#define TFSPS_CORE_TIER_RECORD_INDEX_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "core/base/hash.h"
#include "core/base/limits.h"

namespace tsps {

constexpr uint32_t kPageEntries = 455;
constexpr uint32_t kMinPages = 8;  // of a segment
constexpr uint32_t kMaxPages = 16;
constexpr uint32_t kMaxIndexDepth = 18;
constexpr int kTagBits = 40;
// The number of used entries, including removed ones, above which a segment is rebuilt.
constexpr uint32_t SegmentLimit(uint32_t pages) { return pages * kPageEntries / 10 * 9; }

// Values that stand where an entry has a place otherwise.
constexpr uint32_t kNoRecord = 0xFFFFFFFFu;       // the entry was never used
constexpr uint32_t kRemovedRecord = 0xFFFFFFFEu;  // the entry was used and removed

struct IndexPage {
  uint32_t places[kPageEntries];
  uint32_t low[kPageEntries];  // bits 0 to 31 of the tags
  uint8_t high[kPageEntries];
  uint8_t zero;
};
static_assert(sizeof(IndexPage) == kPageBytes);

// What an entry tells of its row beside the tag and the place.
struct RecordUse {
  int64_t key;
  uint64_t use;  // the bytes of a RowUse (core/table/row_use.h)
};
static_assert(sizeof(RecordUse) == 16, "on-disk size");
constexpr size_t kPageUsesBytes = kPageEntries * sizeof(RecordUse);  // of the entries of a page

struct IndexSegment {
  struct State {
    uint32_t depth;    // the number of leading bits that all tags of the segment share
    uint32_t pattern;  // those bits
    uint32_t sibling;  // the segment that got the other half at the last split
    uint32_t n_pages;
    uint32_t pages[kMaxPages];
  };
  // The number of moves to other pages. One store makes a move. If it is even, states[0] is valid.
  uint32_t moves;
  uint32_t zero;
  State states[2];
};
static_assert(sizeof(IndexSegment) == 168);

struct IndexHeader {
  char magic[8];
  uint32_t version;
  uint32_t has_uses;  // 1: there is a file of uses
  uint64_t seed;      // of the keys' hash
  uint32_t zeros;
  uint32_t crc;  // of the bytes before it
  // --- Fields that change. ---
  uint32_t depth;       // of the directory
  uint32_t n_segments;  // segments with a number, including free ones
  uint32_t n_pages;     // pages with a number, including free ones
};
static_assert(sizeof(IndexHeader) == 48);

// Returns a key's tag: the leading bits of its hash.
inline uint64_t TagOf(int64_t key, uint64_t seed) { return HashKey(key, seed) >> (64 - kTagBits); }

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_INDEX_LAYOUT_H_
