// The layout of a table's files, and of its part of a commit record (group/layout.h). All fields
// are little-endian and have a fixed width. docs/format.md describes the same in words.
//
//  <table>/
//    config       TableFileHeader, which never changes: identity, dim, type, initializer
//    directory    uint32 segment numbers. The directory of depth d is entries [2^d, 2^(d+1)), so
//                 doubling writes a new one after the old one and switches by the record's depth
//    segments     Segment[n], 64 KiB each (index.h)
//    planes.<generation>         PlaneListFile: the planes, and the optimizer whose slots they have
//    plane.<name>.<generation>   one or more elements for each row number
//    free         uint32 row numbers that erases have freed, a stack
//    erased       ErasedKey[]: which keys were erased in which generation
#ifndef TFSPS_CORE_TABLE_LAYOUT_H_
#define TFSPS_CORE_TABLE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/limits.h"
#include "core/base/status.h"

namespace tsps {

constexpr uint32_t kFormatVersion = 5;                    // of a group and its tables
constexpr uint64_t kTableMagic = 0x656c626174737374ULL;   // "tsstable", little-endian
constexpr uint64_t kPlanesMagic = 0x6e616c7073707374ULL;  // "tspsplan"

struct TableFileHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t layout_hash;
  char uuid[32];
  int64_t dim;
  int64_t key_limit;
  int64_t max_rows;
  uint32_t initializer;
  float initializer_a;
  float initializer_b;
  uint32_t row_type;  // PlaneType of the embedding; 0 (in older files): float32
  uint64_t seed;
  uint64_t salt;
  uint32_t rounding;  // Rounding
  uint32_t node;      // Shard; node, nodes and owner_seed are 0 for a whole table
  uint32_t nodes;
  uint32_t reserved;
  uint64_t owner_seed;
  uint64_t reserved2[15];
  uint32_t reserved3;
  uint32_t crc;
};
static_assert(sizeof(TableFileHeader) == 256, "on-disk size");

// The contents of a plane, for every row of a table.
enum class PlaneRole : uint32_t {
  kEmbedding = 1,  // the row itself
  kSlot = 2,       // a slot of the optimizer
  kKey = 3,        // the row's key
  kChanged = 4,    // the change generation (CommitRecord.changes) of the last write
  kMetadata = 5,   // counts and other values of the user
  kUse = 6,        // when steps have trained the row, and how often (row_use.h)
};
enum class PlaneType : uint32_t {
  kFloat32 = 1,
  kBfloat16 = 2,
  kFloat16 = 3,
  kUint32 = 4,
  kInt64 = 5,
};

struct PlaneEntry {
  char name[32];  // padded with zeros
  uint32_t role;
  uint32_t type;
  uint32_t row_bytes;   // whole elements
  uint32_t generation;  // of the list that it was created for; part of its file's name
  uint64_t initial;     // bits of every element of a new row; unused for the embedding and the key
  uint64_t reserved;
};
static_assert(sizeof(PlaneEntry) == 64, "on-disk size");

constexpr int kMaxPlanes = 16;  // of a table

// A file planes.<generation>. It never changes: binding an optimizer creates another one.
struct PlaneListFile {
  uint64_t magic;
  uint32_t version;
  uint32_t layout_hash;
  uint32_t generation;
  uint32_t optimizer;  // OptimizerKind
  uint32_t n_planes;
  uint32_t reserved;
  PlaneEntry planes[kMaxPlanes];
  uint32_t reserved2;
  uint32_t crc;  // of the bytes before it
};
static_assert(sizeof(PlaneListFile) == 40 + 64 * kMaxPlanes, "on-disk size");

enum TableFlag : uint32_t {
  kTableUsed = 1,  // this place has a table
  // A key that the index lacks may have a row on disk, so its row is not necessarily the initial
  // one.
  kTableAbsentElsewhere = 2,
};
constexpr uint32_t kKnownTableFlags = kTableUsed | kTableAbsentElsewhere;  // that this build knows

// A table's part of a commit record: three cache lines. In a place without a table, all fields but
// `removed` are 0.
struct TableState {
  uint64_t rows;             // row numbers in use or free: [0, rows)
  uint64_t live;             // keys in the index
  uint64_t free_rows;        // length of the free stack
  uint64_t removed;          // number of removed tables of this place (table_number.h)
  uint32_t segments;         // segments in use
  uint32_t depth;            // log2 of the directory's size
  uint32_t planes;           // generation of the list of planes
  uint32_t flags;            // TableFlag
  uint64_t erased;           // length of the log of erased keys
  uint32_t complete_since;   // changes since earlier change generations are not known
  uint32_t moves;            // number of mutations that moved rows between tiers, modulo 2^32
  uint64_t index_seed;       // the seed of the keys' hash (SetIndexSeed)
  uint64_t index_check;      // ~index_seed, because with a wrong seed no key would be found
  uint64_t optimizer_id;     // of the optimizer that made the slots; 0: any may use them
  uint64_t optimizer_steps;  // its number of steps when it last trained the table
  uint64_t version;          // number of changes of the table outside of steps
  uint64_t evicted_unused;   // number of rows evicted so far because no step had trained them
  uint64_t evicted_excess;   // number of rows evicted so far because there were too many
  uint64_t admitted;      // number of rows that keys got so far because they occurred often enough
  uint64_t dropped;       // number of gradients of keys without a row that were dropped so far
  uint64_t erased_trims;  // how often entries of the log of erased keys were moved
  uint64_t reserved[6];
};
static_assert(sizeof(TableState) == 192, "on-disk size");

// Sets the seed of a table's index, with its check.
inline void SetIndexSeed(TableState* table, uint64_t seed) {
  table->index_seed = seed;
  table->index_check = ~seed;
}

// An entry of the log of erased keys.
struct ErasedKey {
  int64_t key;
  uint32_t generation;  // CommitRecord.changes at the erase
  uint32_t reserved;
};
static_assert(sizeof(ErasedKey) == 16, "on-disk size");

// The row number of a key. A cache line has four entries.
struct Entry {
  int64_t key;
  uint32_t row_plus_one;  // 0: never used; kTombstone: erased; else row number + 1
  uint32_t reserved;
};
static_assert(sizeof(Entry) == 16, "on-disk size");
constexpr uint32_t kTombstone = 0xFFFFFFFFu;
constexpr uint32_t kMaxRowNumber = 0xFFFFFFF0u;
constexpr uint32_t kAbsentRow = 0xFFFFFFFFu;  // instead of a row number: the key is absent
constexpr uint32_t kFreeRow = 0xFFFFFFFFu;    // instead of a change generation: no key has this row

constexpr size_t kSegmentBytes = 64 * 1024;
constexpr uint32_t kSegmentEntries = (kSegmentBytes - 64) / sizeof(Entry);  // 4092
constexpr uint32_t kSegmentLimit = kSegmentEntries * 4 / 5;  // the most entries that may be used
constexpr uint32_t kSegmentSpread = kSegmentEntries / 4;     // SplitLimit() is less by at most this

// 2^24 segments hold 50 billion keys: a deeper directory means that keys were chosen to collide.
constexpr uint32_t kMaxDepth = 26;

// A bucket of the index. It splits in two when it is full (index.h).
struct Segment {
  uint32_t used;         // number of entries that are not 0, tombstones included
  uint32_t local_depth;  // number of leading hash bits that all its keys share
  uint8_t padding[56];
  Entry entries[kSegmentEntries];
};
static_assert(sizeof(Segment) == kSegmentBytes, "on-disk size");

// Returns a hash of the structs above. It distinguishes builds whose files look alike.
uint32_t TableLayoutHash();

// Returns DataLoss, naming both formats, unless the version and layout of a header are this
// build's.
Status CheckFormat(uint32_t version, uint32_t layout_hash, uint32_t own_layout_hash,
                   const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_LAYOUT_H_
