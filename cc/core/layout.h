// The layout of a group's shared memory. All fields little-endian, fixed width.
// docs/format.md has the same in words.
//
//  group (control file)
//  0          4096          8192               + kRecordBytes     + 2 kRecordBytes
//  +----------+-------------+------------------+------------------+
//  | Header   | LiveState   | CommitRecord 0   | CommitRecord 1   |
//  +----------+-------------+------------------+------------------+
//    never      words that    the state as of an even epoch lives in record 0,
//    changes    change        of an odd epoch in record 1
//
//  LiveState.sequence = 2 * epoch, + 1 while a mutation is in progress. Storing 2 * (epoch + 1)
//  publishes commit record (epoch + 1) & 1 with everything in it: step, row counts of all tables,
//  index sizes.
//
//  <table>/
//    config       TableFileHeader: what never changes: identity, dim, initializer
//    directory    uint32 segment numbers. The directory of depth d is entries [2^d, 2^(d+1)), so
//                 doubling writes a new one beside the old and switches by the record's depth
//    segments     Segment[n], 64 KiB each (index.h)
//    rows         float[capacity][dim]
//    slots.<generation>.<name>   float[capacity][dim]
//    free         uint32 row numbers given back by erase, a stack
//
//  undo           UndoHeader, then records (undo_log.h)
#ifndef TFSPS_CORE_LAYOUT_H_
#define TFSPS_CORE_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tsps {

constexpr uint32_t kFormatVersion = 1;
constexpr uint64_t kGroupMagic = 0x70756f7267737374ULL;  // "tssgroup", little-endian
constexpr uint64_t kTableMagic = 0x656c626174737374ULL;  // "tsstable"
constexpr uint64_t kUndoMagic = 0x6f646e7573707374ULL;   // "tspsundo"

constexpr size_t kPageBytes = 4096;
constexpr int kMaxTables = 1024;

struct GroupFileHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t layout_hash;  // LayoutHash() of the build that wrote it
  char uuid[32];         // hexadecimal digits
  uint32_t reserved;
  uint32_t crc;  // CRC-32C of the bytes before
};
static_assert(sizeof(GroupFileHeader) == 56, "on-disk size");

struct LiveState {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> undo_epoch;  // the undo log holds the before-images of this epoch
  alignas(64) std::atomic<int64_t> writer_pid;
  std::atomic<uint64_t> writer_start;  // of the process, clock ticks since boot: tells a reused pid
  std::atomic<uint32_t> growing;  // 1 while mutations are splits: readers count what that costs
};
static_assert(sizeof(LiveState) == 128 && offsetof(LiveState, writer_pid) == 64, "on-disk size");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "words of the mapping must be plain");

struct TableState {
  uint64_t rows;        // row numbers handed out: [0, rows)
  uint64_t live;        // keys in the index
  uint64_t free_rows;   // length of the free stack
  uint32_t segments;    // segments in use
  uint32_t depth;       // log2 of the directory's size
  uint32_t optimizer;   // OptimizerKind
  uint32_t generation;  // of the slot files
  float slot_init[4];
  char name[136];    // folder; identifies the table to a process that has not mapped it yet.
                     // Empty: there is no table in this place, and all else but `removed` is 0
  uint64_t removed;  // tables that were in this place and have been removed (table_number.h)
};
static_assert(sizeof(TableState) == 200, "on-disk size");

struct CommitRecord {
  uint64_t epoch;
  uint64_t step;
  uint64_t version;
  uint32_t n_tables;
  uint32_t reserved;
  TableState tables[kMaxTables];
};
static_assert(sizeof(CommitRecord) == 32 + 200 * kMaxTables, "on-disk size");

constexpr size_t kLiveOffset = kPageBytes;
constexpr size_t kRecordOffset = 2 * kPageBytes;
constexpr size_t kRecordBytes = (sizeof(CommitRecord) + kPageBytes - 1) / kPageBytes * kPageBytes;
constexpr size_t kControlBytes = kRecordOffset + 2 * kRecordBytes;

// Where a key's row is. A cache line holds four.
struct Entry {
  int64_t key;
  uint32_t row_plus_one;  // 0: never used; kTombstone: erased; else row number + 1
  uint32_t reserved;
};
static_assert(sizeof(Entry) == 16, "on-disk size");
constexpr uint32_t kTombstone = 0xFFFFFFFFu;
constexpr uint32_t kMaxRowNumber = 0xFFFFFFF0u;
constexpr int64_t kMaxDim = 65536;  // floats per row

constexpr size_t kSegmentBytes = 64 * 1024;
constexpr uint32_t kSegmentEntries = (kSegmentBytes - 64) / sizeof(Entry);  // 4092
constexpr uint32_t kSegmentLimit = kSegmentEntries * 4 / 5;  // never more used entries than this
constexpr uint32_t kSegmentSpread = kSegmentEntries / 4;  // SplitLimit() is that much less at most

// More than 2^24 segments hold 50 billion keys: deeper means that keys were chosen to collide.
constexpr uint32_t kMaxDepth = 26;

// A bucket of the index: a page of entries, which splits in two when it is full (index.h).
struct Segment {
  uint32_t used;         // entries that are not 0, tombstones included
  uint32_t local_depth;  // leading hash bits that all its keys share
  uint8_t padding[56];
  Entry entries[kSegmentEntries];
};
static_assert(sizeof(Segment) == kSegmentBytes, "on-disk size");

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
  uint32_t reserved;
  uint64_t seed;
  uint64_t salt;
  uint32_t reserved2;
  uint32_t crc;
};
static_assert(sizeof(TableFileHeader) == 112, "on-disk size");

struct UndoHeader {
  uint64_t magic;
  uint64_t epoch;  // the mutation this log undoes: record `epoch - 1` is the state it leads back to
  uint64_t record_bytes;  // records follow the header's page
  uint32_t n_records;
  uint32_t crc;  // of the fields before
};
static_assert(sizeof(UndoHeader) == 32, "on-disk size");

uint32_t LayoutHash();

}  // namespace tsps

#endif  // TFSPS_CORE_LAYOUT_H_
