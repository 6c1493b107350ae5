// The files of a record index, mapped by all processes of a job.
//
//   records.directory   header at 0; from 4,096 segment numbers: the directory of depth d is words
//                       2^d to 2^(d+1) - 1
//   records.segments    one IndexSegment per number
//   records.pages       pages of 455 entries
//
//   tag of a key: 40 bits of its hash
//   | 39 ... home: the trailing bits are spread over the segment's entries | ... | depth bits: 0 |
//
// A segment has 8 to 16 pages, whose entries are probed one after another, page after page, around
// the end. It grows by a page, and splits in two by its next bit when it would have 17: its load is
// never far below the limit, so a row takes 9 / 0.9 to 9 / 0.8 bytes.
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
// Entries in use, removed ones included, beyond which a segment is made anew.
constexpr uint32_t SegmentLimit(uint32_t pages) { return pages * kPageEntries / 10 * 9; }

// In place of a record's place.
constexpr uint32_t kNoRecord = 0xFFFFFFFFu;       // never used
constexpr uint32_t kRemovedRecord = 0xFFFFFFFEu;  // used before

struct IndexPage {
  uint32_t places[kPageEntries];
  uint32_t low[kPageEntries];  // bits 0 to 31 of the tags
  uint8_t high[kPageEntries];
  uint8_t zero;
};
static_assert(sizeof(IndexPage) == kPageBytes);

struct IndexSegment {
  struct State {
    uint32_t depth;    // bits that all tags here share
    uint32_t pattern;  // those bits
    uint32_t sibling;  // of the last split: who has the other half
    uint32_t n_pages;
    uint32_t pages[kMaxPages];
  };
  // Counts the moves to other pages: one store makes such a move. Even: states[0] holds.
  uint32_t moves;
  uint32_t zero;
  State states[2];
};
static_assert(sizeof(IndexSegment) == 168);

struct IndexHeader {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t seed;  // of the keys' hash
  uint32_t zeros;
  uint32_t crc;  // of the bytes before
  // --- What changes. ---
  uint32_t depth;       // of the directory
  uint32_t n_segments;  // that have ever been numbered
  uint32_t n_pages;
};
static_assert(sizeof(IndexHeader) == 48);

// A key's tag. Its hash's trailing bits are those that a table's own index finds homes by, so the
// leading ones are taken.
inline uint64_t TagOf(int64_t key, uint64_t seed) { return HashKey(key, seed) >> (64 - kTagBits); }

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_INDEX_LAYOUT_H_
