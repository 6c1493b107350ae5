// The undo log of a mutation of rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/row_mutation.h"

namespace tsps {
namespace {

// Returns how many entries of the stack of free rows new keys have taken and erased rows overwrite.
size_t Overwritten(const RowPlan& plan) {
  return std::min<size_t>(plan.reused, plan.erased.size());
}

}  // namespace

Status RowMutation::WriteUndo() {
  std::vector<size_t> row_bytes(plans_.size());
  size_t bytes = 0;
  size_t next_bytes = 0;  // of a step of the same keys, all of which exist then
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
  TSPS_RETURN_IF_ERROR(mutation_.Start(bytes, is_step() ? next_bytes : 0));
  TSPS_FAULT_POINT("undo.reserved");
  for (size_t p = 0; p < plans_.size(); ++p) {
    RowPlan& plan = plans_[p];
    if (!plan.existing.empty()) {
      const size_t n = plan.existing.size();
      plan.images =
          mutation_.Append(UndoKind::kRows, plan.table, n, UndoRowsBytes(n, row_bytes[p]));
      plan.images->planes = static_cast<uint32_t>(plan.planes);
      plan.images->row_bytes = static_cast<uint32_t>(row_bytes[p]);
      char* const payload = UndoPayload(plan.images);
      std::memset(payload, 0, UndoBlockOffset(n, row_bytes[p], 0));  // no block has its images yet
      auto* const rows = reinterpret_cast<uint32_t*>(payload);
      for (size_t i = 0; i < n; ++i) rows[i] = plan.rows[plan.existing[i]];
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
  mutation_.DeclareUndo();
  return Status();
}

}  // namespace tsps
