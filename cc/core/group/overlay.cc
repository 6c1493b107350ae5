#include "core/group/overlay.h"

#include <algorithm>

#include "core/group/record_checks.h"
#include "core/table/index.h"

namespace tsps {

Result<std::unique_ptr<Overlay>> Overlay::Build(const UndoLog& log, const State& state) {
  auto overlay = std::make_unique<Overlay>(log.path());
  overlay->tables_.resize(state.tables.size());
  const auto add = [&](const UndoRecordHeader& record, const char* payload) -> Status {
    TSPS_RETURN_IF_ERROR(CheckUndoRecord(record, payload, state, log.path()));
    TablePart& part = overlay->tables_[record.table];
    switch (record.kind) {
      case UndoKind::kRows: {
        const auto* rows = reinterpret_cast<const uint32_t*>(payload);
        const Rows& kept = overlay->rows_.emplace_back(Rows{record, payload});
        for (size_t i = 0; i < record.n; ++i) {
          if (HasUndoBlock(record, payload, i / kUndoBlock)) part.rows[rows[i]] = {&kept, i};
        }
        break;
      }
      case UndoKind::kInserts: {
        const auto* keys = reinterpret_cast<const int64_t*>(payload);
        part.inserted.insert(keys, keys + record.n);
        break;
      }
      case UndoKind::kErases: {
        const auto* erased = reinterpret_cast<const ErasedEntry*>(payload);
        for (size_t i = 0; i < record.n; ++i) {
          part.erased[uint64_t{erased[i].segment} << 32 | erased[i].entry] = erased[i].row_plus_one;
        }
        break;
      }
      case UndoKind::kFreeRows:
        break;  // readers do not use free rows
      case UndoKind::kSegment: {
        const auto* image = reinterpret_cast<const Segment*>(payload);
        // The depth is copied, because a writer that takes over may overwrite the log.
        part.segments[record.segment] = {image, record.hash,
                                         std::min(LoadRelaxed(image->local_depth), kMaxDepth)};
        break;
      }
    }
    return Status();
  };
  TSPS_RETURN_IF_ERROR(log.Check(state.epoch + 1));
  TSPS_RETURN_IF_ERROR(log.ForEach(state.epoch + 1, add));
  return overlay;
}

uint32_t Overlay::ErasedRow(int table, uint32_t segment, uint32_t entry) const {
  const auto& erased = Part(table).erased;
  const auto row_plus_one = erased.find(uint64_t{segment} << 32 | entry);
  return row_plus_one == erased.end() ? 0 : row_plus_one->second;
}

const Segment* Overlay::SegmentImage(int table, uint32_t segment) const {
  const auto& segments = Part(table).segments;
  const auto entry = segments.find(segment);
  return entry == segments.end() ? nullptr : entry->second.image;
}

void Overlay::ForEachRow(int table, const std::function<void(uint32_t row)>& visit) const {
  for (const auto& [row, position] : Part(table).rows) visit(row);
}

void Overlay::ForEachInserted(int table, const std::function<void(int64_t key)>& visit) const {
  for (const int64_t key : Part(table).inserted) visit(key);
}

void Overlay::ForEachErased(int table, const std::function<void(uint32_t row)>& visit) const {
  for (const auto& [entry, row_plus_one] : Part(table).erased) visit(row_plus_one - 1);
}

Status Overlay::CheckPlanes(int table, const PlaneList& list) const {
  for (const Rows& record : rows_) {
    if (static_cast<int>(record.header.table) != table) continue;
    TSPS_RETURN_IF_ERROR(CheckPlanesOf(record.header, list, path_));
  }
  return Status();
}

const char* Overlay::RowImage(int table, size_t plane, uint32_t row, const PlaneList& list) const {
  const auto& rows = Part(table).rows;
  const auto entry = rows.find(row);
  if (entry == rows.end()) return nullptr;
  const auto& [header, payload] = *entry->second.record;
  if (plane >= header.planes) return nullptr;
  const size_t block = entry->second.i / kUndoBlock;
  const size_t before = UndoBlockRows(header.n, block) * RowBytes(list, plane);
  const size_t within = entry->second.i % kUndoBlock * list.planes[plane].row_bytes;
  return payload + UndoBlockOffset(header.n, header.row_bytes, block) + before + within;
}

}  // namespace tsps
