// The layout of a group's control file and undo log. All fields are little-endian and have a fixed
// width. docs/format.md describes the same in words; table/layout.h has the files of tables.
//
//  group (control file)
//  0          4096          8192         12288              + kRecordBytes     + 2 kRecordBytes
//  +----------+-------------+------------+------------------+------------------+---------------+
//  | Header   | LiveState   | reserved   | CommitRecord 0   | CommitRecord 1   | TableNameEntry[]
//  +----------+-------------+------------+------------------+------------------+---------------+
//    never      words that    for          the state of even epochs is in       names of the
//    changes    change        counters     record 0, of odd epochs in record 1  tables' folders
//
//  LiveState.sequence = 2 * epoch, + 1 while a mutation is in progress. Storing 2 * (epoch + 1)
//  publishes commit record (epoch + 1) & 1 as a whole: step, row counts of all tables, index sizes.
//
//  undo           UndoHeader, then records (undo_log.h)
#ifndef TFSPS_CORE_GROUP_LAYOUT_H_
#define TFSPS_CORE_GROUP_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/limits.h"
#include "core/table/layout.h"

namespace tsps {

constexpr uint64_t kGroupMagic = 0x70756f7267737374ULL;  // "tssgroup", little-endian
constexpr uint64_t kUndoMagic = 0x6f646e7573707374ULL;   // "tspsundo"

struct GroupFileHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t layout_hash;  // GroupLayoutHash() of the build that wrote it
  char uuid[32];         // hexadecimal digits
  uint64_t life;         // tells a group from earlier ones with the same uuid (GroupDraw)
  uint64_t index_seed;   // determines the index seeds of new tables
  uint64_t reserved[7];
  uint32_t reserved2;
  uint32_t crc;  // CRC-32C of the bytes before
};
static_assert(sizeof(GroupFileHeader) == 128, "on-disk size");

// A mutation that is written, and about which other groups decide, too.
struct SealedState {
  std::atomic<uint64_t> epoch;  // of the mutation; void unless it follows the committed epoch
  uint64_t step;                // the group's step after the mutation
  uint64_t run_id;
  uint32_t peers;  // number of groups that decide, this one included
  uint32_t crc;    // of step, run id, peers and epoch
  uint64_t reserved[12];
};
static_assert(sizeof(SealedState) == 128, "on-disk size");

constexpr size_t kMaxScans = 8;  // in progress at once

struct LiveState {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> undo_epoch;  // the undo log holds the before-images of this epoch
  alignas(64) std::atomic<int64_t> writer_pid;
  std::atomic<uint64_t> writer_start;  // clock ticks since boot; they detect a reused pid
  std::atomic<uint32_t> growing;       // 1 while mutations are splits, whose cost readers count
  std::atomic<uint32_t> reserved;
  std::atomic<uint64_t> reserved1;
  std::atomic<uint64_t> run_id;  // the run of the last writer; 0: not known
  // Odd while entries of an index are being moved. Keys may look absent meanwhile.
  std::atomic<uint64_t> rebuilds;
  uint64_t reserved2[2];
  SealedState sealed;
  // The ids of scans in progress, by place (scan_file.h); 0: none.
  std::atomic<uint64_t> scans[kMaxScans];
};
static_assert(sizeof(LiveState) == 320 && offsetof(LiveState, writer_pid) == 64 &&
                  offsetof(LiveState, sealed) == 128 && offsetof(LiveState, scans) == 256,
              "on-disk size");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "words of the mapping must be plain");

struct CommitRecord {
  uint64_t epoch;
  uint64_t step;
  uint64_t version;
  uint32_t n_tables;
  uint32_t changes;  // the change generation of rows that are written now
  uint64_t reserved[4];
  TableState tables[kMaxTables];
};
static_assert(sizeof(CommitRecord) == 64 + sizeof(TableState) * kMaxTables, "on-disk size");

constexpr size_t kLiveOffset = kPageBytes;
// A page of zeros for counters of a job, which other processes read.
constexpr size_t kCountersOffset = 2 * kPageBytes;
constexpr size_t kRecordOffset = 3 * kPageBytes;
constexpr size_t kRecordBytes = (sizeof(CommitRecord) + kPageBytes - 1) / kPageBytes * kPageBytes;
// The folder name of the table in each place, padded with zeros. Processes that have not mapped the
// table find it by this name. It is written before the table is published, and only while the place
// is vacant.
struct TableNameEntry {
  char name[136];
};
constexpr size_t kNamesOffset = kRecordOffset + 2 * kRecordBytes;
constexpr size_t kControlBytes = kNamesOffset + kMaxTables * sizeof(TableNameEntry);
static_assert(kControlBytes % kPageBytes == 0, "whole pages");

struct UndoHeader {
  uint64_t magic;
  uint64_t epoch;         // of the mutation that this log undoes, back to the state of `epoch - 1`
  uint64_t record_bytes;  // records follow the header's page
  uint32_t n_records;
  uint32_t crc;  // of the fields before it
};
static_assert(sizeof(UndoHeader) == 32, "on-disk size");

// Returns a hash of the structs above and of those of tables.
uint32_t GroupLayoutHash();

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_LAYOUT_H_
