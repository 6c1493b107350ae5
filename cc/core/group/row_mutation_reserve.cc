// Reserves what a mutation of rows needs: row numbers, storage, space in the index and in the undo
// log, and space on disk.
#include <algorithm>
#include <iterator>
#include <vector>

#include "core/group/erased_log.h"
#include "core/group/row_mutation.h"
#include "core/table/index.h"

namespace tsps {
namespace {

// Storage is reserved ahead for this many rows at least.
constexpr size_t kRowsReserved = 512;

}  // namespace

Status RowMutation::CheckMaxRows(const RowPlan& plan) const {
  const TableFiles& files = *group_.files(plan.table);
  const uint64_t on_disk = plan.moves.store == nullptr ? 0 : plan.moves.store->rows();
  const uint64_t live =
      StateOf(plan).live + on_disk + plan.fresh.size() - plan.moves.n_fetched() - plan.n_erased();
  const int64_t max_rows = files.config().max_rows;
  if (max_rows == 0 || plan.fresh.empty() || live <= static_cast<uint64_t>(max_rows))
    return Status();
  return Error(Code::kResourceExhausted, "table ", files.folder(), " would have ", live,
               " rows, max_rows is ", max_rows);
}

// A tiered table never exceeds its memory, not even for a moment.
Status RowMutation::ReservePlane(const TableFiles& files, const PlaneList& list, const Plane& plane,
                                 uint64_t rows) {
  const size_t used = rows * plane.row_bytes;
  if (!files.config().storage.tiered()) return writer_.reserver.Ensure(*plane.file, used);
  if (used <= plane.file->size()) return Status();
  const uint64_t ahead =
      std::min<uint64_t>(rows + rows / 8 + kRowsReserved, files.PlanOf(list).rows);
  return plane.file->Reserve(std::max<size_t>(used, ahead * plane.row_bytes));
}

Status RowMutation::ReserveRows(RowPlan& plan) {
  if (plan.fresh.empty()) return Status();
  TableFiles& files = *group_.files(plan.table);
  TableState& state = StateOf(plan);
  const uint64_t reused = std::min<uint64_t>(state.free_rows, plan.fresh.size());
  const uint64_t rows = state.rows + plan.fresh.size() - reused;
  if (rows > kMaxRowNumber) {
    return Error(Code::kResourceExhausted, "table ", files.folder(), " would have ", rows,
                 " rows, the format's limit is ", kMaxRowNumber);
  }
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
  for (const Plane& plane : list->planes) {
    TSPS_RETURN_IF_ERROR(ReservePlane(files, *list, plane, rows));
  }
  for (const uint32_t i : plan.fresh) {
    plan.rows[i] = state.free_rows > 0 ? files.free_stack()[--state.free_rows]
                                       : static_cast<uint32_t>(state.rows++);
  }
  state.live += plan.fresh.size();
  plan.reused = reused;
  return Status();
}

Status RowMutation::ReserveErased(RowPlan& plan) {
  if (plan.erase_keys.empty() && plan.moves.demoted.empty()) return Status();
  if (!plan.moves.demoted.empty() || ErasedHaveMoved(plan)) TSPS_RETURN_IF_ERROR(FindErased(plan));
  TableFiles& files = *group_.files(plan.table);
  TableState& state = StateOf(plan);
  if (plan.n_erased() > 0) {
    std::vector<int64_t> keys = plan.moves.erased;
    for (size_t i = 0; i < plan.erased.size() - plan.moves.n_demoted; ++i) {
      const ErasedEntry& entry = plan.erased[i];
      keys.push_back(files.segment(entry.segment)->entries[entry.entry].key);
    }
    TSPS_RETURN_IF_ERROR(
        LogErased(files, writer_.reserver, keys, mutation_.next().changes, &state));
  }
  return writer_.reserver.Ensure(files.free_rows(),
                                 (state.free_rows + plan.erased.size()) * sizeof(uint32_t));
}

Status RowMutation::Reserve() {
  // This comes first, so that the index does not grow for rows that are refused.
  for (const RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(CheckMaxRows(plan));
  for (RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(MakeSpace(plan));
  for (RowPlan& plan : plans_) {
    if (plan.fresh.empty()) continue;
    TSPS_RETURN_IF_ERROR(GrowIndex(group_, writer_, counters_, plan.table, plan.keys, plan.fresh));
  }
  for (const RowPlan& plan : plans_) {
    if (plan.n_erased() == 0) continue;
    TSPS_RETURN_IF_ERROR(TrimErased(group_, writer_, plan.table, plan.n_erased()));
  }
  // These have committed epochs and changed index sizes and logs.
  mutation_.Reset();
  for (RowPlan& plan : plans_) {
    TSPS_RETURN_IF_ERROR(ReserveRows(plan));
    TSPS_RETURN_IF_ERROR(ReserveErased(plan));
    if (plan.n_dropped == 0) continue;
    std::copy_if(plan.rows.begin(), plan.rows.end(), std::back_inserter(plan.changed_rows),
                 [](uint32_t row) { return row != kAbsentRow; });
  }
  TSPS_RETURN_IF_ERROR(WriteUndo());
  for (RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(PrepareMoves(plan));
  return Status();
}

}  // namespace tsps
