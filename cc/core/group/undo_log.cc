#include "core/group/undo_log.h"

#include <cstring>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/base/lane_sum.h"
#include "core/base/prefetch.h"
#include "core/base/racy_copy.h"
#include "core/base/stream_copy.h"
#include "core/table/layout.h"

namespace tsps {
namespace {

size_t Padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Returns where the seals begin in the payload of a kRows record.
size_t SealsOffset(size_t n) { return Padded(n * sizeof(uint32_t)); }

size_t RecordBytes(size_t payload) { return sizeof(UndoRecordHeader) + Padded(payload); }

// Returns whether a record has the length of the payload that it claims to have.
bool Fits(const UndoRecordHeader& record) {
  if (record.bytes % 64 != 0 || record.n > record.bytes / sizeof(uint32_t)) return false;
  switch (record.kind) {
    case UndoKind::kRows:
      return record.planes <= kMaxPlanes &&
             UndoRowsBytes(record.n, record.row_bytes) == record.bytes;
    case UndoKind::kInserts:
      return UndoInsertsBytes(record.n) == record.bytes;
    case UndoKind::kErases:
      return UndoErasesBytes(record.n) == record.bytes;
    case UndoKind::kFreeRows:
      return UndoFreeRowsBytes(record.n) == record.bytes;
    case UndoKind::kSegment:
      return record.n == 1 && UndoSegmentBytes() == record.bytes;
  }
  return false;
}

}  // namespace

size_t UndoRowsBytes(size_t n, size_t row_bytes) {
  return RecordBytes(UndoBlockOffset(n, row_bytes, 0) + n * row_bytes);
}
size_t UndoInsertsBytes(size_t n) { return RecordBytes(n * sizeof(int64_t)); }
size_t UndoErasesBytes(size_t n) { return RecordBytes(n * sizeof(ErasedEntry)); }
size_t UndoSegmentBytes() { return RecordBytes(sizeof(Segment)); }
size_t UndoFreeRowsBytes(size_t n) { return RecordBytes(n * sizeof(uint32_t)); }

size_t UndoBlockOffset(size_t n, size_t row_bytes, size_t block) {
  return SealsOffset(n) + Padded(UndoBlocks(n) * sizeof(uint64_t)) + block * kUndoBlock * row_bytes;
}

Status CheckPlanesOf(const UndoRecordHeader& record, const PlaneList& list,
                     const std::string& path) {
  if (record.planes < list.trained() || record.planes > list.planes.size()) {
    return Damaged(path, "images of ", record.planes, " planes, where steps change ",
                   list.trained(), " of ", list.planes.size());
  }
  const size_t bytes = RowBytes(list, record.planes);
  if (record.row_bytes == bytes) return Status();
  return Damaged(path, "images of ", record.planes, " planes with ", record.row_bytes,
                 " bytes per row, which have ", bytes);
}

namespace {

uint64_t SealOf(const UndoRecordHeader& record, const char* payload, size_t block) {
  const auto* const seals = reinterpret_cast<const uint64_t*>(payload + SealsOffset(record.n));
  return __atomic_load_n(&seals[block], __ATOMIC_ACQUIRE);
}

// Returns the seal of a checksum, which is never 0.
uint64_t MakeSeal(uint32_t sum) { return uint64_t{~sum} << 32 | sum; }

// Returns whether a block is not sealed yet, or still has the checksum of its seal.
bool IsSame(const UndoRecordHeader& record, const char* payload, size_t block) {
  const uint64_t seal = SealOf(record, payload, block);
  if (seal == 0) return true;
  LaneSum sum;
  sum.Add(payload + UndoBlockOffset(record.n, record.row_bytes, block),
          UndoBlockRows(record.n, block) * record.row_bytes);
  return seal == MakeSeal(sum.Value());
}

// Returns the checksum of a record's header and payload; for kRows, of the row numbers but not of
// the images.
uint32_t RecordChecksum(const UndoRecordHeader& record, const char* payload) {
  const uint32_t crc = Crc32c(0, &record, offsetof(UndoRecordHeader, checksum));
  size_t end = 0;
  switch (record.kind) {
    case UndoKind::kRows:
      end = record.n * sizeof(uint32_t);
      break;
    case UndoKind::kInserts:
      end = record.n * sizeof(int64_t);
      break;
    case UndoKind::kErases:
      end = record.n * sizeof(ErasedEntry);
      break;
    case UndoKind::kFreeRows:
      end = record.n * sizeof(uint32_t);
      break;
    case UndoKind::kSegment:
      end = sizeof(Segment);
      break;
  }
  return Crc32cOfParts(crc, payload, end);
}

}  // namespace

bool HasUndoBlock(const UndoRecordHeader& record, const char* payload, size_t block) {
  return SealOf(record, payload, block) != 0;
}

void SaveUndoBlock(UndoRecordHeader* record, size_t block, const PlaneList& list) {
  char* const payload = UndoPayload(record);
  const size_t n = UndoBlockRows(record->n, block);
  const uint32_t* const rows = reinterpret_cast<const uint32_t*>(payload) + block * kUndoBlock;
  char* to = payload + UndoBlockOffset(record->n, record->row_bytes, block);
  LaneSum sum;
  for (size_t p = 0; p < record->planes; ++p) {
    const Plane& plane = list.planes[p];
    const size_t bytes = plane.row_bytes;
    for (size_t i = 0; i < n; ++i) {
      PrefetchAhead(i, n, [&](size_t next) { Prefetch(plane.row(rows[next]), bytes); });
      if (bytes % 32 == 0) {
        sum.AddCopy(plane.row(rows[i]), bytes, to + i * bytes);
      } else {
        std::memcpy(to + i * bytes, plane.row(rows[i]), bytes);
      }
    }
    if (bytes % 32 != 0) sum.Add(to, n * bytes);
    to += n * bytes;
  }
  StreamFence();  // orders the images before the seal, and the seal before the rows
  auto* const seals = reinterpret_cast<uint64_t*>(payload + SealsOffset(record->n));
  __atomic_store_n(&seals[block], MakeSeal(sum.Value()), __ATOMIC_RELEASE);
  TSPS_FAULT_POINT("undo.block");
}

Result<std::unique_ptr<UndoLog>> UndoLog::Create(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(path, kPageBytes, SIZE_MAX));
  return std::unique_ptr<UndoLog>(new UndoLog(std::move(file)));
}

Result<std::unique_ptr<UndoLog>> UndoLog::Open(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, kPageBytes, SIZE_MAX));
  return std::unique_ptr<UndoLog>(new UndoLog(std::move(file)));
}

void UndoLog::Start() {
  end_ = kPageBytes;
  n_records_ = 0;
}

UndoRecordHeader* UndoLog::Append(UndoKind kind, int table, size_t n, size_t bytes) {
  auto* record = reinterpret_cast<UndoRecordHeader*>(file_->data() + end_);
  *record = UndoRecordHeader{};
  record->kind = kind;
  record->table = static_cast<uint32_t>(table);
  record->n = n;
  record->bytes = bytes;
  end_ += bytes;
  ++n_records_;
  return record;
}

void UndoLog::Seal(uint64_t epoch) {
  for (size_t at = kPageBytes; at < end_;) {
    auto* const record = reinterpret_cast<UndoRecordHeader*>(file_->data() + at);
    record->checksum = RecordChecksum(*record, UndoPayload(record));
    at += record->bytes;
  }
  UndoHeader header = {};
  header.magic = kUndoMagic;
  header.epoch = epoch;
  header.record_bytes = end_ - kPageBytes;
  header.n_records = n_records_;
  header.crc = HeaderCrc(header);
  std::memcpy(file_->data(), &header, sizeof(header));
}

Status UndoLog::Check(uint64_t epoch) const {
  return ForEach(epoch, [&](const UndoRecordHeader& record, const char* payload) -> Status {
    if (TSPS_FAULT_OFF("damage")) return Status();
    bool same = RecordChecksum(record, payload) == record.checksum;
    const size_t blocks = record.kind == UndoKind::kRows ? UndoBlocks(record.n) : 0;
    for (size_t block = 0; same && block < blocks; ++block) same = IsSame(record, payload, block);
    return same ? Status() : Damaged(path(), "checksum mismatch in a record of mutation ", epoch);
  });
}

Status UndoLog::ForEach(uint64_t epoch, const Visit& visit) const {
  UndoHeader header;
  std::memcpy(&header, file_->data(), sizeof(header));
  const size_t size = file_->RefreshSize();
  const bool sealed = header.magic == kUndoMagic && header.crc == HeaderCrc(header);
  if (sealed) TSPS_RETURN_IF_ERROR(file_->CheckRange(kPageBytes + header.record_bytes));
  if (!sealed || header.epoch != epoch || header.record_bytes > size - kPageBytes) {
    return Error(Code::kDataLoss, file_->path(), " is damaged: it is not the undo log of mutation ",
                 epoch);
  }
  size_t at = kPageBytes;
  const size_t end = kPageBytes + header.record_bytes;
  for (uint32_t i = 0; i < header.n_records; ++i) {
    UndoRecordHeader record = {};
    if (end - at >= sizeof(record)) RacyRead(&record, file_->data() + at, sizeof(record));
    if (record.bytes < sizeof(record) || record.bytes > end - at || !Fits(record)) {
      return Error(Code::kDataLoss, file_->path(), " is damaged: record ", i, " of mutation ",
                   epoch, " does not fit the file");
    }
    TSPS_RETURN_IF_ERROR(visit(record, file_->data() + at + sizeof(record)));
    at += record.bytes;
  }
  return Status();
}

}  // namespace tsps
