#include "core/group/undo_log.h"

#include <cstring>

#include "core/base/crc32c.h"
#include "core/base/racy_copy.h"
#include "core/table/layout.h"

namespace tsps {
namespace {

size_t Padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t RecordBytes(size_t payload) { return sizeof(UndoRecordHeader) + Padded(payload); }

// Whether a record has the length of the payload that it claims to have.
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
    case UndoKind::kSegment:
      return record.n == 1 && UndoSegmentBytes() == record.bytes;
  }
  return false;
}

}  // namespace

size_t UndoRowsBytes(size_t n, size_t row_bytes) {
  return RecordBytes(UndoImagesOffset(n, row_bytes));
}
size_t UndoInsertsBytes(size_t n) { return RecordBytes(n * sizeof(int64_t)); }
size_t UndoErasesBytes(size_t n) { return RecordBytes(n * sizeof(ErasedEntry)); }
size_t UndoSegmentBytes() { return RecordBytes(sizeof(Segment)); }

size_t UndoImagesOffset(size_t n, size_t bytes_before) {
  return Padded(n * sizeof(uint32_t)) + n * bytes_before;
}

Status CheckPlanesOf(const UndoRecordHeader& record, const PlaneList& list,
                     const std::string& path) {
  const size_t bytes = RowBytes(list, list.trained());
  if (record.planes == list.trained() && record.row_bytes == bytes) return Status();
  return Damaged(path, "images of ", record.planes, " planes with ", record.row_bytes,
                 " bytes per row, where ", list.trained(), " have ", bytes);
}

Result<std::unique_ptr<UndoLog>> UndoLog::Create(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Create(path, kPageBytes, SIZE_MAX));
  return std::unique_ptr<UndoLog>(new UndoLog(std::move(file)));
}

Result<std::unique_ptr<UndoLog>> UndoLog::Open(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, kPageBytes, SIZE_MAX));
  return std::unique_ptr<UndoLog>(new UndoLog(std::move(file)));
}

Status UndoLog::Start(size_t bytes) {
  TSPS_RETURN_IF_ERROR(file_->Reserve(kPageBytes + bytes));
  end_ = kPageBytes;
  n_records_ = 0;
  return Status();
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
  UndoHeader header = {};
  header.magic = kUndoMagic;
  header.epoch = epoch;
  header.record_bytes = end_ - kPageBytes;
  header.n_records = n_records_;
  header.crc = HeaderCrc(header);
  std::memcpy(file_->data(), &header, sizeof(header));
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
