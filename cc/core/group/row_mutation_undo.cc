// The undo log of a mutation of rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/row_mutation.h"

namespace tsps {
namespace {

// How many free rows that new keys have taken are overwritten by rows that become free.
size_t Overwritten(const RowPlan& plan) {
  return std::min<size_t>(plan.reused, plan.erased.size());
}

}  // namespace

Status RowMutation::WriteUndo(bool is_step) {
  std::vector<size_t> row_bytes(plans_.size());
  size_t bytes = 0;
  size_t next_bytes = 0;  // of a step of the same keys, which are there then
  for (size_t p = 0; p < plans_.size(); ++p) {
    const RowPlan& plan = plans_[p];
    TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                          group_.files(plan.table)->BoundPlanes(StateOf(plan)));
    row_bytes[p] = RowBytes(*list, plan.planes);
    if (!plan.existing.empty()) bytes += UndoRowsBytes(plan.existing.size(), row_bytes[p]);
    if (!plan.fresh.empty()) bytes += UndoInsertsBytes(plan.fresh.size());
    if (!plan.erased.empty()) bytes += UndoErasesBytes(plan.erased.size());
    if (Overwritten(plan) > 0) bytes += UndoFreeRowsBytes(Overwritten(plan));
    next_bytes += UndoRowsBytes(plan.n, row_bytes[p]);
  }
  TSPS_RETURN_IF_ERROR(mutation_.Start(bytes, is_step ? next_bytes : 0));
  TSPS_FAULT_POINT("undo.reserved");
  std::vector<UndoRecordHeader*> images(plans_.size());
  for (size_t p = 0; p < plans_.size(); ++p) {
    const RowPlan& plan = plans_[p];
    if (!plan.existing.empty()) {
      const size_t n = plan.existing.size();
      images[p] = mutation_.Append(UndoKind::kRows, plan.table, n, UndoRowsBytes(n, row_bytes[p]));
      images[p]->planes = static_cast<uint32_t>(plan.planes);
      images[p]->row_bytes = static_cast<uint32_t>(row_bytes[p]);
    }
    if (!plan.fresh.empty()) {
      UndoRecordHeader* record = mutation_.Append(UndoKind::kInserts, plan.table, plan.fresh.size(),
                                                  UndoInsertsBytes(plan.fresh.size()));
      auto* keys = reinterpret_cast<int64_t*>(UndoPayload(record));
      for (size_t i = 0; i < plan.fresh.size(); ++i) keys[i] = plan.keys[plan.fresh[i]];
    }
    if (const size_t n = plan.erased.size(); n > 0) {
      UndoRecordHeader* record =
          mutation_.Append(UndoKind::kErases, plan.table, n, UndoErasesBytes(n));
      std::memcpy(UndoPayload(record), plan.erased.data(), n * sizeof(ErasedEntry));
    }
    if (const size_t n = Overwritten(plan); n > 0) {
      UndoRecordHeader* record =
          mutation_.Append(UndoKind::kFreeRows, plan.table, n, UndoFreeRowsBytes(n));
      record->hash = StateOf(plan).free_rows;
      std::memcpy(UndoPayload(record),
                  group_.files(plan.table)->free_stack() + StateOf(plan).free_rows,
                  n * sizeof(uint32_t));
    }
    TSPS_FAULT_POINT("undo.record");
  }
  ForEachPlan([&](size_t p) {
    if (images[p] != nullptr) CopyImages(plans_[p], images[p]);
  });
  mutation_.DeclareUndo();
  return Status();
}

void RowMutation::CopyImages(const RowPlan& plan, UndoRecordHeader* record) {
  char* const payload = UndoPayload(record);
  auto* const rows = reinterpret_cast<uint32_t*>(payload);
  const RowPlanes planes = Planes(plan);
  const size_t n = plan.existing.size();
  executor_.ParallelFor(UndoBlocks(n), 1, [&](size_t first, size_t last) {
    for (size_t block = first; block < last; ++block) {
      const size_t begin = block * kUndoBlock;
      const size_t end = begin + UndoBlockRows(n, block);
      for (size_t i = begin; i < end; ++i) rows[i] = plan.rows[plan.existing[i]];
      char* to = payload + UndoBlockOffset(n, record->row_bytes, block);
      for (int plane = 0; plane < planes.n; ++plane) {
        const size_t bytes = planes.bytes[plane];
        for (size_t i = begin; i < end; ++i, to += bytes) {
          if (i + RowPlanes::kAhead < end) planes.Prefetch(plane, rows[i + RowPlanes::kAhead]);
          std::memcpy(to, planes.at(plane, rows[i]), bytes);
        }
      }
      SealUndoBlock(record, block);
    }
  });
}

}  // namespace tsps
