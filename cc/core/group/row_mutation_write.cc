// Writes a mutation of rows, and makes it visible.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/probe.h"
#include "core/group/row_mutation.h"
#include "core/table/index.h"
#include "core/table/row_records.h"
#include "core/table/row_updater.h"

namespace tsps {
namespace {

constexpr size_t kRowGrain = 512;

}  // namespace

size_t RowMutation::n_erased() const {
  size_t n = 0;
  for (const RowPlan& plan : plans_) n += plan.n_erased();
  return n;
}

void RowMutation::ForEachPlan(const std::function<void(RowPlan& plan)>& body) {
  std::vector<size_t> sizes;
  for (const RowPlan& plan : plans_) sizes.push_back(plan.n);
  ForEachItem(sizes, executor_, [&](size_t p) { body(plans_[p]); });
}

// The planes are mapped already, by ReserveRows or WriteUndo.
RowPlanes RowMutation::Planes(const RowPlan& plan) const {
  return RowPlanes(*group_.files(plan.table)->Planes(StateOf(plan)), plan.planes,
                   mutation_.next().changes);
}

void RowMutation::InitializeFresh(const RowPlan& plan) {
  const TableConfig& config = group_.files(plan.table)->config();
  const RowPlanes planes = Planes(plan);
  const RowRecords records(planes.list);
  // Drawing a row takes longer than copying one, so planes that the caller writes are skipped.
  bool is_set[kMaxPlanes] = {};
  const uint32_t now = UseStep(step_.value_or(writer_.state.step));
  for (const size_t plane : plan.written_planes) is_set[plane] = true;
  executor_.ParallelFor(plan.fresh.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t k = begin; k < end; ++k) {
      const uint32_t i = plan.fresh[k];
      const uint32_t row = plan.rows[i];
      PrefetchAhead(k, end, [&](size_t next) { records.Prefetch(plan.rows[plan.fresh[next]]); });
      planes.keys[row] = plan.keys[i];
      if (const char* const record = plan.moves.Record(k)) {
        records.Put(record, row);
        continue;
      }
      const bool drawn = i < plan.n_updates();
      for (size_t p = 0; p < planes.list.planes.size(); ++p) {
        const Plane& plane = planes.list.planes[p];
        const bool has_initial = plane.role == PlaneRole::kSlot ||
                                 plane.role == PlaneRole::kMetadata ||
                                 plane.role == PlaneRole::kUse;
        if (has_initial && (drawn || !is_set[p])) plane.Initialize(row, 1);
        if (plane.role == PlaneRole::kUse && !is_set[p]) planes.list.uses()[row].step = now;
      }
      if (drawn || !is_set[0]) InitialRow(config, plan.keys[i], planes.at(0, row));
    }
  });
}

void RowMutation::UpdateRows(const RowPlan& plan, const uint32_t* positions, size_t n, bool fresh) {
  if (n == 0) return;
  const RowPlanes planes = Planes(plan);
  const auto trained = static_cast<int>(planes.list.trained());
  const auto first_after_slots = 1 + static_cast<int>(planes.list.slots());
  RowUse* const uses = planes.list.uses();
  const EvictionPolicy* const eviction = EvictionOf(plan);
  const uint32_t half_life = eviction == nullptr ? kDefaultHalfLife : eviction->half_life;
  const auto& [request, gradients, kind] = *plan.update;
  StoredRowUpdater updater(group_.files(plan.table)->config(), kind, request.hyper, request.n_hyper,
                           *step_);
  float* slot_rows[kMaxSlots] = {};
  for (size_t k = 0; k < n; ++k) {
    PrefetchAhead(k, n, [&](size_t next) {
      const uint32_t row = plan.rows[positions[next]];
      for (int plane = 0; plane < trained; ++plane) planes.Prefetch(plane, row);
      planes.PrefetchChanged(row);
    });
    const uint32_t i = positions[k];
    for (int plane = 1; plane < first_after_slots; ++plane) {
      slot_rows[plane - 1] = planes.floats(plane, plan.rows[i]);
    }
    updater.Update(plan.keys[i], gradients.at(i), planes.at(0, plan.rows[i]), slot_rows);
    if (uses != nullptr) {
      uses[plan.rows[i]] = Used(uses[plan.rows[i]], UseStep(*step_), half_life);
    }
    if (!fresh) planes.Touch(plan.rows[i]);
    TSPS_FAULT_POINT("apply.row");
  }
}

void RowMutation::SetRows(const RowPlan& plan, const uint32_t* positions, size_t n, bool fresh) {
  if (n == 0) return;
  const RowPlanes planes = Planes(plan);
  const TableWrites& writes = *plan.writes;
  for (size_t k = 0; k < n; ++k) {
    const uint32_t i = positions[k];
    const size_t at = i - plan.n_updates();
    const size_t from = writes.positions == nullptr ? at : writes.positions[at];
    for (size_t v = 0; v < writes.planes.size(); ++v) {
      const PlaneValues& plane_values = writes.planes[v];
      std::memcpy(planes.at(static_cast<int>(plan.written_planes[v]), plan.rows[i]),
                  static_cast<const char*>(plane_values.values) + from * plane_values.row_bytes,
                  plane_values.row_bytes);
    }
    if (!fresh) planes.Touch(plan.rows[i]);
    TSPS_FAULT_POINT("assign.row");
  }
}

void RowMutation::WriteRows(const RowPlan& plan, bool fresh) {
  const std::vector<uint32_t>& positions = fresh ? plan.fresh : plan.existing;
  executor_.ParallelFor(UndoBlocks(positions.size()), 1, [&](size_t first, size_t last) {
    for (size_t block = first; block < last; ++block) {
      if (!fresh) {
        SaveUndoBlock(plan.images, block, *group_.files(plan.table)->Planes(StateOf(plan)));
      }
      const uint32_t* const begin = positions.data() + block * kUndoBlock;
      const uint32_t* const end = begin + UndoBlockRows(positions.size(), block);
      // The keys of updates come first.
      const uint32_t* const set = std::lower_bound(begin, end, plan.n_updates());
      UpdateRows(plan, begin, static_cast<size_t>(set - begin), fresh);
      SetRows(plan, set, static_cast<size_t>(end - set), fresh);
    }
  });
}

void RowMutation::Begin() {
  for (const RowPlan& plan : plans_) {
    const std::vector<uint32_t>& rows = plan.n_dropped > 0 ? plan.changed_rows : plan.rows;
    mutation_.Touches(plan.table, rows.data(), rows.size());
    mutation_.Touches(plan.table, plan.erased_rows.data(), plan.erased_rows.size());
  }
  for (const RowPlan& plan : plans_) {
    if (plan.moves.prepared) mutation_.Leaves(plan.table, plan.moves.store->entering());
  }
  mutation_.Begin(&executor_);
  for (const RowPlan& plan : plans_) {
    if (!plan.moves.prepared) continue;
    plan.moves.store->Declare();
    // A mutation that only demotes is a part of another one, which holds places of records.
    if (!only_demotes_ && !writer_.images.any()) plan.moves.store->PlaceCopies();
  }
}

void RowMutation::WriteIndex() {
  for (const RowPlan& plan : plans_) {
    ForEachShare(plan.fresh.size() >= kSharedKeys, executor_,
                 [&](size_t share, size_t shares) { InsertFresh(plan, share, shares); });
    EraseEntries(plan);
  }
}

void RowMutation::InsertFresh(const RowPlan& plan, size_t share, size_t shares) {
  constexpr size_t kInFlight = 64;  // inserts whose entries are prefetched
  struct Insert {
    Segment* segment;
    uint64_t hash;
    uint32_t i;
  } inserts[kInFlight];
  TableFiles& files = *group_.files(plan.table);
  const TableState& state = StateOf(plan);
  const RowPlanes planes = Planes(plan);
  for (size_t k = 0; k < plan.fresh.size();) {
    size_t n = 0;
    for (; k < plan.fresh.size() && n < kInFlight; ++k) {
      const uint32_t i = plan.fresh[k];
      const uint64_t hash = HashKey(plan.keys[i], state.index_seed);
      const uint32_t number = files.directory_entries()[DirectoryPosition(hash, state.depth)];
      if (ShareOf(number, shares) != share) continue;
      Segment* const segment = files.segment(number);
      PrefetchLine(&segment->entries[HomeEntry(hash)]);
      inserts[n++] = {segment, hash, i};
    }
    for (size_t j = 0; j < n; ++j) {
      const auto& [segment, hash, i] = inserts[j];
      InsertInSegment(segment, plan.keys[i], hash, plan.rows[i]);
      planes.Touch(plan.rows[i]);
      TSPS_FAULT_POINT("commit.insert");
    }
  }
}

void RowMutation::EraseEntries(const RowPlan& plan) {
  if (plan.erased.empty()) return;
  TableFiles& files = *group_.files(plan.table);
  TableState& state = StateOf(plan);
  const RowPlanes planes = Planes(plan);
  for (const ErasedEntry& entry : plan.erased) {
    StoreRelaxed(files.segment(entry.segment)->entries[entry.entry].row_plus_one, kTombstone);
    StoreRelaxed(planes.changed[entry.row_plus_one - 1], kFreeRow);
    StoreRelaxed(files.free_stack()[state.free_rows++], entry.row_plus_one - 1);
    TSPS_FAULT_POINT("erase.entry");
  }
  state.live -= plan.erased.size();
}

void RowMutation::WriteState() {
  if (only_demotes_) return;
  for (const RowPlan& plan : plans_) {
    TableState& state = StateOf(plan);
    state.evicted_unused += plan.n_unused;
    state.evicted_excess += plan.n_excess;
    state.admitted += plan.n_admitted;
    state.dropped += plan.n_dropped;
    if (!step_.has_value()) {
      ++state.version;
    } else if (plan.update.has_value() && optimizer_.id != 0) {
      state.optimizer_id = optimizer_.id;
      state.optimizer_steps = optimizer_.steps;
    }
  }
  if (step_.has_value()) {
    mutation_.next().step = *step_;
  } else {
    ++mutation_.next().version;
  }
}

void RowMutation::Write() {
  const bool any_fresh = std::any_of(plans_.begin(), plans_.end(),
                                     [](const RowPlan& plan) { return !plan.fresh.empty(); });
  if (any_fresh) {
    ForEachPlan([&](const RowPlan& plan) {
      InitializeFresh(plan);
      WriteRows(plan, /*fresh=*/true);
    });
  }
  Begin();
  ForEachPlan([&](const RowPlan& plan) { WriteRows(plan, /*fresh=*/false); });
  WriteIndex();
  WriteState();
  written_ = true;
}

void RowMutation::Seal(const Sealed& sealed) {
  mutation_.Seal(sealed);
  sealed_ = true;
}

void RowMutation::Publish() {
  mutation_.Publish();
  TSPS_FAULT_POINT("publish.moves");
  FinishMoves(/*published=*/true);
  RaiseMax(counters_.publish_ns_max, mutation_.nanoseconds());
  if (!step_.has_value()) return;
  counters_.steps_applied.fetch_add(1, std::memory_order_relaxed);
  uint64_t rows = 0;
  for (const RowPlan& plan : plans_) rows += plan.n - plan.n_dropped;
  counters_.rows_written.fetch_add(rows, std::memory_order_relaxed);
}

void RowMutation::Undo() {
  if (mutation_.begun()) mutation_.Undo();
  FinishMoves(/*published=*/false);
}

}  // namespace tsps
