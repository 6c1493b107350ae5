// UndoLog: the before-images of the mutation in progress.
//
// Written whole but for images of rows, then declared valid for epoch e by LiveState.undo_epoch,
// and only then does the mutation to epoch e begin. It saves the images of a block of rows right
// before it writes to them, while they are in a cache; the block's seal says that they are there.
// Publishing epoch e makes the log void. Undoing is idempotent: a recovery that is killed starts
// again.
//
//   page 0      UndoHeader
//   page 1 ..   records, each a RecordHeader and its payload, padded to 64 bytes:
//     kRows     uint32 row[n]; uint64 seal[], one for each block of kUndoBlock rows: 0 until its
//               images are there, then their checksum and, in the upper half, its complement; the
//               images, block after block, and in a block plane after plane of the table's first
//               planes: the embedding and the slots, or, of an assign of metadata, all up to the
//               last one that it sets. Each part begins at a multiple of 64 bytes
//     kInserts  int64 key[n]: keys that were absent
//     kErases   ErasedEntry[n]: entries that became tombstones
//     kFreeRows uint32 row[n]: a part of the stack of free rows that was overwritten
//     kSegment  Segment: one before its split or compaction
#ifndef TFSPS_CORE_GROUP_UNDO_LOG_H_
#define TFSPS_CORE_GROUP_UNDO_LOG_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/group/layout.h"
#include "core/os/mapped_file.h"
#include "core/table/planes.h"

namespace tsps {

enum class UndoKind : uint32_t {
  kRows = 1,
  kInserts = 2,
  kErases = 3,
  kSegment = 4,
  kFreeRows = 5
};

struct UndoRecordHeader {
  UndoKind kind;
  uint32_t table;
  uint64_t n;
  uint64_t bytes;      // of the whole record, this header and padding included
  uint32_t planes;     // kRows: how many, from the first one of the table's list on
  uint32_t row_bytes;  // kRows: of one row in all of them
  uint32_t segment;    // kSegment: its number
  uint32_t padding;
  // kSegment: of a key that belongs there; leads with the segment's prefix. kFreeRows: the position
  // of the part in the stack.
  uint64_t hash;
  uint64_t padding2;
  uint32_t padding3;
  uint32_t checksum;  // of the fields before, and of the payload; of kRows' payload, its rows
};
static_assert(sizeof(UndoRecordHeader) == 64, "on-disk size");

struct ErasedEntry {
  uint32_t segment;
  uint32_t entry;
  uint32_t row_plus_one;
};
static_assert(sizeof(ErasedEntry) == 12, "on-disk size");

// Sizes and parts of a record.
size_t UndoRowsBytes(size_t n, size_t row_bytes);
size_t UndoInsertsBytes(size_t n);
size_t UndoErasesBytes(size_t n);
size_t UndoSegmentBytes();
size_t UndoFreeRowsBytes(size_t n);
inline char* UndoPayload(UndoRecordHeader* record) { return reinterpret_cast<char*>(record + 1); }
// Rows of a block of a kRows record.
constexpr size_t kUndoBlock = 256;
inline size_t UndoBlocks(size_t n) { return (n + kUndoBlock - 1) / kUndoBlock; }
inline size_t UndoBlockRows(size_t n, size_t block) {
  return std::min(kUndoBlock, n - block * kUndoBlock);
}
// In the payload of a kRows record: where the images of a block begin.
size_t UndoBlockOffset(size_t n, size_t row_bytes, size_t block);
// Between Seal and the end of the mutation: copies the images of a block's rows and seals it. After
// that they may be written.
void SaveUndoBlock(UndoRecordHeader* record, size_t block, const PlaneList& list);
// Whether the images of a block are there. If not, nothing has been written to its rows.
bool HasUndoBlock(const UndoRecordHeader& record, const char* payload, size_t block);
// DataLoss, naming the log, unless a kRows record has images of these planes, of all that steps
// change at least.
Status CheckPlanesOf(const UndoRecordHeader& record, const PlaneList& list,
                     const std::string& path);

class UndoLog {
 public:
  static Result<std::unique_ptr<UndoLog>> Create(const std::string& path);
  static Result<std::unique_ptr<UndoLog>> Open(const std::string& path);

  // --- Writing: Start, Append..., Seal. ---
  // Of a log for which the caller has reserved room: SizeFor(bytes), for records of `bytes` in all.
  void Start();
  static size_t SizeFor(size_t bytes) { return kPageBytes + bytes; }
  // Space for one record; the caller fills the payload.
  UndoRecordHeader* Append(UndoKind kind, int table, size_t n, size_t bytes);
  // Completes the header for `epoch`. The caller then stores LiveState.undo_epoch.
  void Seal(uint64_t epoch);

  // --- Reading. ---
  // DataLoss unless the log is a complete one for `epoch`, with the checksums that it had.
  Status Check(uint64_t epoch) const;
  // Calls visit for each record of the log for `epoch`, with a copy of its header, which fits the
  // record, and the payload, where it lies; ends at its first error. DataLoss if the log is not a
  // complete one for it.
  //
  // A writer that takes over may overwrite the log while a reader looks at it. What is read then is
  // garbage that the caller's validation throws away, but it never leads out of the file.
  using Visit = std::function<Status(const UndoRecordHeader& header, const char* payload)>;
  Status ForEach(uint64_t epoch, const Visit& visit) const;

  MappedFile& file() { return *file_; }
  const std::string& path() const { return file_->path(); }

 private:
  explicit UndoLog(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  std::unique_ptr<MappedFile> file_;
  size_t end_ = 0;  // of the records appended so far
  uint32_t n_records_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_UNDO_LOG_H_
