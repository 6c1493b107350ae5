#include "core/group/row_mutation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/fault_point.h"
#include "core/gradients/dedupe.h"
#include "core/group/probe.h"
#include "core/table/index.h"
#include "core/table/row_records.h"

namespace tsps {
namespace {

constexpr size_t kRowGrain = 512;

}  // namespace

RowPlanes::RowPlanes(const PlaneList& planes, size_t n_planes, uint32_t generation)
    : list(planes),
      n(static_cast<int>(n_planes)),
      keys(planes.keys()),
      changed(planes.changed_generations()),
      changes(generation) {
  for (int p = 0; p < n; ++p) {
    base[p] = list.planes[static_cast<size_t>(p)].file->data();
    bytes[p] = list.planes[static_cast<size_t>(p)].row_bytes;
  }
}

RowPlan& RowMutation::PlanOf(int place) {
  for (RowPlan& plan : plans_) {
    if (plan.table == place) return plan;
  }
  RowPlan& plan = plans_.emplace_back();
  plan.table = place;
  return plan;
}

void RowMutation::AddUpdates(int place, const int64_t* keys, size_t n) {
  RowPlan& plan = PlanOf(place);
  plan.keys = keys;
  plan.n = n;
  plan.updates = n;
}

void RowMutation::AddWrites(int place, const int64_t* keys, size_t n, size_t planes) {
  RowPlan& plan = PlanOf(place);
  plan.planes = std::max(plan.planes, planes);
  if (plan.n > 0) {
    if (plan.joined.empty()) plan.joined.assign(plan.keys, plan.keys + plan.n);
    plan.joined.insert(plan.joined.end(), keys, keys + n);
    keys = plan.joined.data();
  }
  plan.keys = keys;
  plan.n += n;
}

void RowMutation::AddEvictions(int place, std::vector<int64_t> keys) {
  PlanOf(place).moves.evicted = std::move(keys);
}

void RowMutation::AddErases(int place, const int64_t* keys, size_t n) {
  RowPlan& plan = PlanOf(place);
  std::vector<int32_t> inverse(n);
  plan.erase_keys = Dedupe({{keys, n, inverse.data()}});
}

void RowMutation::ForEachPlan(const std::function<void(size_t p)>& body) {
  std::vector<size_t> sizes;
  for (const RowPlan& plan : plans_) sizes.push_back(plan.n);
  ForEachItem(sizes, executor_, body);
}

size_t RowMutation::n_erased(const RowPlan& plan) {
  return plan.erased.size() - plan.moves.n_evicted + plan.moves.erased.size();
}

size_t RowMutation::n_erased() const {
  size_t n = 0;
  for (const RowPlan& plan : plans_) n += n_erased(plan);
  return n;
}

bool RowMutation::HasFresh() const {
  return std::any_of(plans_.begin(), plans_.end(),
                     [](const RowPlan& plan) { return !plan.fresh.empty(); });
}

Status RowMutation::CheckMaxRows(const RowPlan& plan) const {
  const TableFiles& files = *group_.files(plan.table);
  const uint64_t on_disk = plan.moves.store == nullptr ? 0 : plan.moves.store->rows();
  const uint64_t live =
      StateOf(plan).live + on_disk + plan.fresh.size() - plan.moves.n_fetched() - n_erased(plan);
  const int64_t max_rows = files.config().max_rows;
  if (max_rows == 0 || plan.fresh.empty() || live <= static_cast<uint64_t>(max_rows))
    return Status();
  return Error(Code::kResourceExhausted, "table ", files.folder(), " would have ", live,
               " rows, max_rows is ", max_rows);
}

// A tiered table never exceeds its memory, not even for a moment.
Status RowMutation::ReserveRowsOf(const TableFiles& files, const PlaneList& list,
                                  const Plane& plane, uint64_t rows) {
  const size_t used = rows * plane.row_bytes;
  if (!files.config().storage.tiered()) return writer_.reserver.Ensure(*plane.file, used);
  if (used <= plane.file->size()) return Status();
  const uint64_t ahead = std::min<uint64_t>(rows + rows / 8 + kRowGrain, files.PlanOf(list).rows);
  return plane.file->Reserve(std::max<size_t>(used, ahead * plane.row_bytes));
}

// Assigns row numbers to the fresh keys: freed ones first, then new ones.
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
    TSPS_RETURN_IF_ERROR(ReserveRowsOf(files, *list, plane, rows));
  }
  for (const uint32_t i : plan.fresh) {
    plan.rows[i] = state.free_rows > 0 ? files.free_stack()[--state.free_rows]
                                       : static_cast<uint32_t>(state.rows++);
  }
  state.live += plan.fresh.size();
  plan.reused = reused;
  return Status();
}

namespace {

// Adds keys to the log of erased ones, after those of the committed state. A log that is too long
// is emptied, and the state records this. Its old entries are only overwritten by the next erase,
// when no state has them any more.
Status LogErased(TableFiles& files, StorageReserver& reserver, const std::vector<int64_t>& erased,
                 uint32_t generation, TableState* state) {
  const uint64_t length = state->erased + erased.size();
  if (length > TableFiles::MaxErased(state->live)) {
    state->erased = 0;
    state->complete_since = generation + 1;
    return Status();
  }
  TSPS_RETURN_IF_ERROR(reserver.Ensure(files.erased(), length * sizeof(ErasedKey)));
  for (const int64_t key : erased) {
    files.erased_keys()[state->erased++] = {key, generation, 0};
  }
  return Status();
}

}  // namespace

Status RowMutation::ReserveErased(RowPlan& plan) {
  if (plan.erase_keys.empty() && plan.moves.evicted.empty()) return Status();
  if (!plan.fresh.empty() || !plan.moves.evicted.empty()) TSPS_RETURN_IF_ERROR(FindErased(plan));
  TableFiles& files = *group_.files(plan.table);
  TableState& state = StateOf(plan);
  if (n_erased(plan) > 0) {
    std::vector<int64_t> keys = plan.moves.erased;
    for (size_t i = 0; i < plan.erased.size() - plan.moves.n_evicted; ++i) {
      const ErasedEntry& entry = plan.erased[i];
      keys.push_back(files.segment(entry.segment)->entries[entry.entry].key);
    }
    TSPS_RETURN_IF_ERROR(
        LogErased(files, writer_.reserver, keys, mutation_.next().changes, &state));
  }
  return writer_.reserver.Ensure(files.free_rows(),
                                 (state.free_rows + plan.erased.size()) * sizeof(uint32_t));
}

Status RowMutation::Prepare(bool is_step) {
  // This comes first, so that the index does not grow for rows that are refused.
  for (const RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(CheckMaxRows(plan));
  for (RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(MakeSpace(plan));
  for (RowPlan& plan : plans_) {
    if (plan.fresh.empty()) continue;
    TSPS_RETURN_IF_ERROR(GrowIndex(group_, writer_, counters_, plan.table, plan.keys, plan.fresh));
  }
  // Growth has committed epochs and changed index sizes.
  mutation_.Reset();
  for (RowPlan& plan : plans_) {
    TSPS_RETURN_IF_ERROR(ReserveRows(plan));
    TSPS_RETURN_IF_ERROR(ReserveErased(plan));
  }
  TSPS_RETURN_IF_ERROR(WriteUndo(is_step));
  for (RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(PrepareMoves(plan));
  return Status();
}

// The planes are mapped already, by ReserveRows or WriteUndo.
RowPlanes RowMutation::Planes(const RowPlan& plan) const {
  return RowPlanes(*group_.files(plan.table)->Planes(StateOf(plan)), plan.planes,
                   mutation_.next().changes);
}

void RowMutation::InitializeFresh(const RowPlan& plan, const std::vector<size_t>& set) {
  const TableConfig& config = group_.files(plan.table)->config();
  const RowPlanes planes = Planes(plan);
  const RowRecords records(planes.list);
  bool is_set[kMaxPlanes] = {};
  for (const size_t place : set) is_set[place] = true;
  executor_.ParallelFor(plan.fresh.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t k = begin; k < end; ++k) {
      const uint32_t i = plan.fresh[k];
      const uint32_t row = plan.rows[i];
      if (k + RowPlanes::kAhead < end) {
        records.Prefetch(plan.rows[plan.fresh[k + RowPlanes::kAhead]]);
      }
      planes.keys[row] = plan.keys[i];
      if (const char* const record = plan.moves.Record(k)) {
        records.Put(record, row);
        continue;
      }
      const bool drawn = i < plan.updates;
      for (size_t p = 0; p < planes.list.planes.size(); ++p) {
        const Plane& plane = planes.list.planes[p];
        if (plane.role != PlaneRole::kSlot && plane.role != PlaneRole::kMetadata) continue;
        if (drawn || !is_set[p]) plane.Initialize(row, 1);
      }
      if (drawn || !is_set[0]) InitialRow(config, plan.keys[i], planes.at(0, row));
    }
  });
}

void RowMutation::Begin() {
  for (const RowPlan& plan : plans_) {
    mutation_.Touches(plan.table, plan.rows.data(), plan.n);
    mutation_.Touches(plan.table, plan.erased_rows.data(), plan.erased_rows.size());
  }
  for (const RowPlan& plan : plans_) {
    if (plan.moves.prepared) mutation_.Leaves(plan.table, plan.moves.store->entering());
  }
  mutation_.Begin(&executor_);
  for (const RowPlan& plan : plans_) {
    if (plan.moves.prepared) plan.moves.store->Declare();
  }
}

void RowMutation::WriteIndex() {
  for (const RowPlan& plan : plans_) {
    TableFiles& files = *group_.files(plan.table);
    const TableState& state = StateOf(plan);
    const RowPlanes planes = Planes(plan);
    for (size_t k = 0; k < plan.fresh.size(); ++k) {
      const uint32_t i = plan.fresh[k];
      if (k + RowPlanes::kAhead < plan.fresh.size()) {
        PrefetchEntry(files, state, plan.keys[plan.fresh[k + RowPlanes::kAhead]]);
      }
      const uint64_t hash = HashKey(plan.keys[i], state.index_seed);
      const uint32_t segment = files.directory_entries()[DirectoryPosition(hash, state.depth)];
      InsertInSegment(files.segment(segment), plan.keys[i], hash, plan.rows[i]);
      planes.Touch(plan.rows[i]);
      TSPS_FAULT_POINT("commit.insert");
    }
    EraseEntries(plan);
  }
}

void RowMutation::EraseEntries(const RowPlan& plan) {
  if (plan.erased.empty()) return;
  TableFiles& files = *group_.files(plan.table);
  TableState& state = mutation_.next().tables[static_cast<size_t>(plan.table)];
  const RowPlanes planes = Planes(plan);
  for (const ErasedEntry& entry : plan.erased) {
    StoreRelaxed(files.segment(entry.segment)->entries[entry.entry].row_plus_one, kTombstone);
    StoreRelaxed(planes.changed[entry.row_plus_one - 1], kFreeRow);
    StoreRelaxed(files.free_stack()[state.free_rows++], entry.row_plus_one - 1);
    TSPS_FAULT_POINT("erase.entry");
  }
  state.live -= plan.erased.size();
}

void RowMutation::Publish() {
  mutation_.Publish();
  FinishMoves(/*published=*/true);
  RaiseMax(counters_.publish_ns_max, mutation_.nanoseconds());
}

void RowMutation::Undo() {
  if (mutation_.begun()) mutation_.Undo();
  FinishMoves(/*published=*/false);
}

}  // namespace tsps
