// GroupWriter's mutations of rows: steps, assigns and erases.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/dedupe.h"
#include "core/fault_point.h"
#include "core/group.h"
#include "core/group_impl.h"
#include "core/index.h"
#include "core/merge.h"

namespace tsps {
namespace {

constexpr size_t kUpdateGrain = 256;

// Positions of keys are 32 bits wide.
Status CheckCount(const std::string& table, size_t n) {
  if (n <= static_cast<size_t>(INT32_MAX)) return Status();
  return Error(Code::kInvalidArgument, "table ", table,
               ": at most 2147483647 keys at once. Received: ", n);
}

// Finds the gradient of a key by its position among an update's keys.
class GradientRows {
 public:
  GradientRows(const TableUpdate& update, size_t dim) : dim_(dim), pieces_(update.pieces) {
    if (pieces_.empty()) pieces_.push_back({update.gradients, update.n});
    size_t end = 0;
    for (const TableUpdate::Piece& piece : pieces_) ends_.push_back(end += piece.n);
  }
  const float* at(size_t i) const {
    if (i < ends_[0]) return pieces_[0].rows + i * dim_;
    const size_t p =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    return pieces_[p].rows + (i - ends_[p - 1]) * dim_;
  }
  // As FirstNonFiniteRow.
  int64_t FirstNonFinite(Executor& executor) const {
    size_t before = 0;
    for (const TableUpdate::Piece& piece : pieces_) {
      const int64_t row = FirstNonFiniteRow(piece.rows, piece.n, dim_, executor);
      if (row >= 0) return static_cast<int64_t>(before) + row;
      before += piece.n;
    }
    return -1;
  }

 private:
  const size_t dim_;
  std::vector<TableUpdate::Piece> pieces_;
  std::vector<size_t> ends_;  // of each piece, among the update's keys
};

}  // namespace

Status GroupWriter::ApplyStep(uint64_t step, const std::vector<TableUpdate>& updates,
                              Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  if (step != impl_->state.step + 1) {
    return Error(Code::kFailedPrecondition, "step ", step, " cannot be applied to ", group_.path(),
                 ": step ", impl_->state.step, " is the last committed one");
  }
  RowMutation mutation(*group_.impl_, *impl_, group_.counters_, executor);
  std::vector<bool> seen(static_cast<size_t>(group_.table_count()));
  std::vector<OptimizerKind> kinds;
  std::vector<GradientRows> gradients;
  uint64_t rows_written = 0;
  for (const TableUpdate& update : updates) {
    const auto table = static_cast<size_t>(update.table);
    const TableConfig& config = group_.config(update.table);
    if (seen[table])
      return Error(Code::kInvalidArgument, "table ", config.name, " is twice in step ", step);
    seen[table] = true;
    const auto kind = static_cast<OptimizerKind>(impl_->state.tables[table].optimizer);
    if (kind == OptimizerKind::kNone) {
      return Error(Code::kFailedPrecondition, "table ", group_.path(), "/", config.name,
                   " has no optimizer bound");
    }
    // Of nothing, hyperparameters are nobody's: ranks that all had nothing have averaged none.
    const Status hyper =
        update.n > 0 ? ValidateHyper(kind, update.hyper, update.n_hyper) : Status();
    if (!hyper.ok()) return Error(hyper.code(), "table ", config.name, ": ", hyper.message());
    TSPS_RETURN_IF_ERROR(CheckCount(config.name, update.n));
    TSPS_RETURN_IF_ERROR(group_.CheckKeys(update.table, update.keys, update.n));
    mutation.Add(update.table, update.keys, update.n);
    kinds.push_back(kind);
    gradients.emplace_back(update, static_cast<size_t>(config.dim));
    rows_written += update.n;
  }
  std::vector<int64_t> not_finite(updates.size());
  const Status planned =
      mutation.Plan([&](size_t u) { not_finite[u] = gradients[u].FirstNonFinite(executor); });
  for (size_t u = 0; u < updates.size(); ++u) {
    if (not_finite[u] < 0) continue;
    return Error(Code::kInvalidArgument, "table ", group_.config(updates[u].table).name,
                 ": the gradient of key ", updates[u].keys[not_finite[u]], " is not finite; step ",
                 step, " was not applied");
  }
  TSPS_RETURN_IF_ERROR(planned);
  TSPS_RETURN_IF_ERROR(mutation.Prepare());

  const auto update_rows = [&](size_t u, const std::vector<uint32_t>& positions) {
    if (positions.empty()) return;
    const TableUpdate& update = updates[u];
    const RowPlan& plan = mutation.plans()[u];
    const RowPlanes planes = mutation.Planes(plan);
    const RowUpdater updater(kinds[u], planes.dim, update.hyper);
    executor.ParallelFor(positions.size(), kUpdateGrain, [&](size_t begin, size_t end) {
      float* slot_rows[kMaxSlots] = {};
      for (size_t k = begin; k < end; ++k) {
        if (k + RowPlanes::kAhead < end) {
          const uint32_t next = plan.rows[positions[k + RowPlanes::kAhead]];
          for (int plane = 0; plane < planes.n; ++plane) planes.Prefetch(plane, next);
        }
        const uint32_t i = positions[k];
        for (int plane = 1; plane < planes.n; ++plane) {
          slot_rows[plane - 1] = planes.at(plane, plan.rows[i]);
        }
        updater.Update(gradients[u].at(i), planes.at(0, plan.rows[i]), slot_rows);
        TSPS_FAULT_POINT("apply.row");
      }
    });
  };
  if (mutation.HasFresh()) {
    mutation.ForEachPlan([&](size_t u) {
      mutation.InitializeFresh(mutation.plans()[u]);
      update_rows(u, mutation.plans()[u].fresh);  // nobody can see these rows yet
    });
  }
  mutation.Begin();
  mutation.ForEachPlan([&](size_t u) { update_rows(u, mutation.plans()[u].existing); });
  mutation.next().step = step;
  mutation.Commit();
  group_.counters_.steps_applied.fetch_add(1, std::memory_order_relaxed);
  group_.counters_.rows_written.fetch_add(rows_written, std::memory_order_relaxed);
  return Status();
}

Status GroupWriter::Assign(int table, const int64_t* keys, const float* rows,
                           const float* const* slots, size_t n, Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_RETURN_IF_ERROR(CheckCount(group_.config(table).name, n));
  TSPS_RETURN_IF_ERROR(group_.CheckKeys(table, keys, n));
  std::vector<int32_t> inverse(n);
  const std::vector<int64_t> unique = Dedupe({{keys, n, inverse.data()}}, executor);
  std::vector<size_t> last(unique.size());
  for (size_t i = 0; i < n; ++i) last[static_cast<size_t>(inverse[i])] = i;

  RowMutation mutation(*group_.impl_, *impl_, group_.counters_, executor);
  mutation.Add(table, unique.data(), unique.size());
  TSPS_RETURN_IF_ERROR(mutation.Plan());
  TSPS_RETURN_IF_ERROR(mutation.Prepare());
  const RowPlan& plan = mutation.plans()[0];
  const RowPlanes planes = mutation.Planes(plan);
  const int n_planes = slots == nullptr ? 1 : planes.n;
  const auto write_rows = [&](const std::vector<uint32_t>& positions) {
    executor.ParallelFor(positions.size(), kUpdateGrain, [&](size_t begin, size_t end) {
      for (size_t k = begin; k < end; ++k) {
        const uint32_t i = positions[k];
        for (int plane = 0; plane < n_planes; ++plane) {
          const float* from = plane == 0 ? rows : slots[plane - 1];
          std::memcpy(planes.at(plane, plan.rows[i]), from + last[i] * planes.dim, planes.bytes());
        }
        TSPS_FAULT_POINT("assign.row");
      }
    });
  };
  mutation.InitializeFresh(plan);
  write_rows(plan.fresh);
  mutation.Begin();
  write_rows(plan.existing);
  ++mutation.next().version;
  mutation.Commit();
  return Status();
}

Result<size_t> GroupWriter::Erase(int table, const int64_t* keys, size_t n) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_RETURN_IF_ERROR(CheckCount(group_.config(table).name, n));
  Group::Impl& group = *group_.impl_;
  TableFiles& files = *group.files(table);
  State next = impl_->state;
  TableState& state = next.tables[static_cast<size_t>(table)];
  std::vector<ErasedEntry> erased;
  SerialExecutor serial;
  std::vector<int32_t> inverse(n);
  for (const int64_t key : Dedupe({{keys, n, inverse.data()}}, serial)) {
    const uint64_t hash = HashKey(key);
    const uint32_t number = files.directory_entries()[DirectorySlot(hash, state.depth)];
    const Segment* segment = files.segment(number);
    if (const Entry* entry = FindInSegment(*segment, key, hash)) {
      erased.push_back(
          {number, static_cast<uint32_t>(entry - segment->entries), entry->row_plus_one});
    }
  }
  if (erased.empty()) return size_t{0};
  TSPS_RETURN_IF_ERROR(impl_->reserver.Ensure(
      files.free_rows(), (state.free_rows + erased.size()) * sizeof(uint32_t)));
  TSPS_RETURN_IF_ERROR(group.undo->Start(UndoErasesBytes(erased.size())));
  UndoRecordHeader* record =
      group.undo->Append(UndoKind::kErases, table, erased.size(), UndoErasesBytes(erased.size()));
  std::memcpy(UndoPayload(record), erased.data(), erased.size() * sizeof(ErasedEntry));
  group.undo->Seal(next.epoch + 1);
  group.control->Begin(next.epoch);
  for (const ErasedEntry& entry : erased) {
    StoreRelaxed(files.segment(entry.segment)->entries[entry.entry].row_plus_one, kTombstone);
    files.free_stack()[state.free_rows++] = entry.row_plus_one - 1;
    TSPS_FAULT_POINT("erase.entry");
  }
  state.live -= erased.size();
  ++next.version;
  ++next.epoch;
  group.control->Publish(next);
  impl_->state = std::move(next);
  return erased.size();
}

}  // namespace tsps
