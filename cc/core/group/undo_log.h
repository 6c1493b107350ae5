// UndoLog: the before-images of the mutation in progress.
//
// The log is written as a whole, except the images of rows, and then declared valid for epoch e by
// LiveState.undo_epoch. Only then does the mutation to epoch e begin. The mutation saves the images
// of a block of rows right before it writes to them, while they are in a cache; the block's seal
// shows that they are complete. Publishing epoch e makes the log void. Undoing is idempotent: a
// recovery that is killed starts again.
//
//   page 0      UndoHeader
//   page 1 ..   records, each an UndoRecordHeader and its payload, padded to 64 bytes:
//     kRows     uint32 row[n]; uint64 seal[], one for each block of kUndoBlock rows: 0 until its
//               images are complete, then their checksum and, in the upper half, its complement;
//               the images, block after block, and in a block plane after plane of the table's
//               first planes: the embedding and the slots, or, if an assign sets metadata, all
//               planes up to the last one that it sets. Each part begins at a multiple of 64 bytes
//     kInserts  int64 key[n]: keys that were absent
//     kErases   ErasedEntry[n]: entries that became tombstones
//     kFreeRows uint32 row[n]: a part of the stack of free rows that was overwritten
//     kSegment  Segment: a segment before its split or compaction
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
  uint32_t planes;     // kRows: number of planes, from the list's first on
  uint32_t row_bytes;  // kRows: of one row in these planes
  uint32_t segment;    // kSegment: its number
  uint32_t padding;
  // kSegment: the hash of a key that belongs to it, which begins with the segment's prefix.
  // kFreeRows: the position of the part in the stack.
  uint64_t hash;
  uint64_t padding2;
  uint32_t padding3;
  uint32_t checksum;  // of the fields before it and the payload; for kRows, of the rows only
};
static_assert(sizeof(UndoRecordHeader) == 64, "on-disk size");

// An entry of the index, and what it contained.
struct ErasedEntry {
  uint32_t segment;
  uint32_t entry;
  uint32_t row_plus_one;
};
static_assert(sizeof(ErasedEntry) == 12, "on-disk size");

// Sizes of records of n elements, and the address of a record's payload.
size_t UndoRowsBytes(size_t n, size_t row_bytes);
size_t UndoInsertsBytes(size_t n);
size_t UndoErasesBytes(size_t n);
size_t UndoSegmentBytes();
size_t UndoFreeRowsBytes(size_t n);
inline char* UndoPayload(UndoRecordHeader* record) { return reinterpret_cast<char*>(record + 1); }
// The number of rows in a block of a kRows record.
constexpr size_t kUndoBlock = 256;
inline size_t UndoBlocks(size_t n) { return (n + kUndoBlock - 1) / kUndoBlock; }
inline size_t UndoBlockRows(size_t n, size_t block) {
  return std::min(kUndoBlock, n - block * kUndoBlock);
}
// Returns where the images of a block begin in the payload of a kRows record.
size_t UndoBlockOffset(size_t n, size_t row_bytes, size_t block);
// Copies the images of a block's rows to the log and seals the block. The rows may be written
// afterwards. Call it between Seal and the end of the mutation.
void SaveUndoBlock(UndoRecordHeader* record, size_t block, const PlaneList& list);
// Returns whether the images of a block are complete. If not, its rows have not been written.
bool HasUndoBlock(const UndoRecordHeader& record, const char* payload, size_t block);
// Returns DataLoss, naming the log, unless a kRows record has images of planes of this list, at
// least of all planes that steps change.
Status CheckPlanesOf(const UndoRecordHeader& record, const PlaneList& list,
                     const std::string& path);

// Writing is for the group's writer; reading is thread-safe.
class UndoLog {
 public:
  // Create an empty log; map an existing one read-only.
  static Result<std::unique_ptr<UndoLog>> Create(const std::string& path);
  static Result<std::unique_ptr<UndoLog>> Open(const std::string& path);

  // --- Writing: Start, Append..., Seal. ---
  // Starts a new log. The caller has reserved SizeFor(bytes) in the file, for records of `bytes` in
  // all.
  void Start();
  static size_t SizeFor(size_t bytes) { return kPageBytes + bytes; }
  // Returns space for one record; the caller fills the payload.
  UndoRecordHeader* Append(UndoKind kind, int table, size_t n, size_t bytes);
  // Completes the log for `epoch`. The caller then stores LiveState.undo_epoch.
  void Seal(uint64_t epoch);

  // --- Reading. ---
  // Returns DataLoss unless the log is complete for `epoch` and all checksums match.
  Status Check(uint64_t epoch) const;
  // Calls `visit` for each record of the log for `epoch`, with a copy of its header, which has the
  // right length, and the payload in the log. Returns the first error of `visit`. DataLoss: the log
  // is not complete for `epoch`.
  //
  // A writer that takes over may overwrite the log meanwhile. The reader then gets garbage, which
  // the caller's validation discards, but nothing outside of the file.
  using Visit = std::function<Status(const UndoRecordHeader& header, const char* payload)>;
  Status ForEach(uint64_t epoch, const Visit& visit) const;

  MappedFile& file() { return *file_; }
  const std::string& path() const { return file_->path(); }

 private:
  explicit UndoLog(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  std::unique_ptr<MappedFile> file_;
  size_t end_ = 0;  // the end of the records appended so far
  uint32_t n_records_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_UNDO_LOG_H_
