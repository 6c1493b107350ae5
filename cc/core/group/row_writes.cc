// GroupWriter's mutations of rows: steps, assigns and erases.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/base/fault_point.h"
#include "core/gradients/dedupe.h"
#include "core/gradients/merge.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/mutation.h"
#include "core/group/row_mutation.h"
#include "core/table/index.h"

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

// A step between its two acts.
class PreparedStep {
 public:
  PreparedStep(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
               Executor& executor)
      : group_(group),
        writer_(writer),
        counters_(counters),
        executor_(executor),
        mutation_(group, writer, counters, executor) {}

  Status Prepare(const Group& group, uint64_t step, const std::vector<TableUpdate>& updates);
  void Commit();

 private:
  void UpdateRows(size_t u, const std::vector<uint32_t>& positions, bool fresh);

  Group::Impl& group_;
  GroupWriter::Impl& writer_;
  GroupCounters& counters_;
  Executor& executor_;
  uint64_t step_ = 0;
  std::vector<TableUpdate> updates_;
  std::vector<OptimizerKind> kinds_;
  std::vector<GradientRows> gradients_;
  RowMutation mutation_;
};

Status PreparedStep::Prepare(const Group& group, uint64_t step,
                             const std::vector<TableUpdate>& updates) {
  step_ = step;
  updates_ = updates;
  std::vector<bool> seen(writer_.state.tables.size());
  for (const TableUpdate& update : updates_) {
    TSPS_ASSIGN_OR_RETURN(const int place, writer_.PlaceOf(group, update.table));
    const auto table = static_cast<size_t>(place);
    const TableConfig& config = group_.files(place)->config();
    if (seen[table])
      return Error(Code::kInvalidArgument, "table ", config.name, " is twice in step ", step);
    seen[table] = true;
    TSPS_ASSIGN_OR_RETURN(const PlaneList* const planes,
                          group_.files(place)->BoundPlanes(writer_.state.tables[table]));
    const OptimizerKind kind = planes->optimizer.kind;
    if (kind == OptimizerKind::kNone) {
      return Error(Code::kFailedPrecondition, "table ", group.path(), "/", config.name,
                   " has no optimizer bound");
    }
    // Of nothing, hyperparameters are nobody's: ranks that all had nothing have averaged none.
    const Status hyper =
        update.n > 0 ? ValidateHyper(kind, update.hyper, update.n_hyper) : Status();
    if (!hyper.ok()) {
      const char* const why =
          update.n_hyper == static_cast<size_t>(HyperCount(kind))
              ? ""
              : ", of another rule: the table was bound to this one meanwhile. Optimizers that "
                "train one table, as where models share a layer, must have one rule for it "
                "(sparse_optimizer=, or the table's own). Nothing was changed";
      return Error(hyper.code(), "table ", config.name, ": ", hyper.message(), why);
    }
    TSPS_RETURN_IF_ERROR(CheckCount(config.name, update.n));
    TSPS_RETURN_IF_ERROR(CheckKeys(config, update.keys, update.n));
    mutation_.Add(place, update.keys, update.n);
    kinds_.push_back(kind);
    gradients_.emplace_back(update, static_cast<size_t>(config.dim));
  }
  std::vector<int64_t> not_finite(updates_.size());
  const Status planned =
      mutation_.Plan([&](size_t u) { not_finite[u] = gradients_[u].FirstNonFinite(executor_); });
  for (size_t u = 0; u < updates_.size(); ++u) {
    if (not_finite[u] < 0) continue;
    const TableConfig& config = group_.files(mutation_.plans()[u].table)->config();
    return Error(Code::kInvalidArgument, "table ", config.name, ": the gradient of key ",
                 updates_[u].keys[not_finite[u]], " is not finite; step ", step,
                 " was not applied");
  }
  TSPS_RETURN_IF_ERROR(planned);
  return mutation_.Prepare(/*is_step=*/true);
}

void PreparedStep::UpdateRows(size_t u, const std::vector<uint32_t>& positions, bool fresh) {
  if (positions.empty()) return;
  const RowPlan& plan = mutation_.plans()[u];
  const RowPlanes planes = mutation_.Planes(plan);
  const size_t dim = group_.files(plan.table)->dim();
  const RowUpdater updater(kinds_[u], dim, updates_[u].hyper);
  executor_.ParallelFor(positions.size(), kUpdateGrain, [&](size_t begin, size_t end) {
    float* slot_rows[kMaxSlots] = {};
    for (size_t k = begin; k < end; ++k) {
      if (k + RowPlanes::kAhead < end) {
        const uint32_t next = plan.rows[positions[k + RowPlanes::kAhead]];
        for (int plane = 0; plane < planes.n; ++plane) planes.Prefetch(plane, next);
        planes.PrefetchChanged(next);
      }
      const uint32_t i = positions[k];
      for (int plane = 1; plane < planes.n; ++plane) {
        slot_rows[plane - 1] = planes.floats(plane, plan.rows[i]);
      }
      updater.Update(gradients_[u].at(i), planes.floats(0, plan.rows[i]), slot_rows);
      if (!fresh) planes.Touch(plan.rows[i]);
      TSPS_FAULT_POINT("apply.row");
    }
  });
}

void PreparedStep::Commit() {
  if (mutation_.HasFresh()) {
    mutation_.ForEachPlan([&](size_t u) {
      mutation_.InitializeFresh(mutation_.plans()[u]);
      UpdateRows(u, mutation_.plans()[u].fresh, true);  // nobody can see these rows yet
    });
  }
  mutation_.Begin();
  mutation_.ForEachPlan([&](size_t u) { UpdateRows(u, mutation_.plans()[u].existing, false); });
  mutation_.next().step = step_;
  mutation_.Commit();
  counters_.steps_applied.fetch_add(1, std::memory_order_relaxed);
  uint64_t rows = 0;
  for (const TableUpdate& update : updates_) rows += update.n;
  counters_.rows_written.fetch_add(rows, std::memory_order_relaxed);
}

GroupWriter::Impl::Impl(const Group& group, ControlFile& control)
    : images(group.path(), control, reserver) {}
GroupWriter::Impl::~Impl() = default;

Status GroupWriter::PrepareStep(uint64_t step, const std::vector<TableUpdate>& updates,
                                Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  if (step != impl_->state.step + 1) {
    const char* const why =
        step > impl_->state.step
            ? ""
            : "; another optimizer made a step while this one was computed. Train the tables of a "
              "process in one thread, one optimizer after the other, or in processes of their own. "
              "Nothing was changed";
    return Error(Code::kFailedPrecondition, "step ", step, " cannot be applied to ", group_.path(),
                 ": step ", impl_->state.step, " is the last committed one", why);
  }
  auto prepared = std::make_unique<PreparedStep>(*group_.impl_, *impl_, group_.counters_, executor);
  TSPS_RETURN_IF_ERROR(prepared->Prepare(group_, step, updates));
  impl_->prepared = std::move(prepared);
  return Status();
}

void GroupWriter::CommitStep() noexcept {
  impl_->prepared->Commit();
  impl_->prepared.reset();
}

void GroupWriter::AbortStep() { impl_->prepared.reset(); }

Status GroupWriter::ApplyStep(uint64_t step, const std::vector<TableUpdate>& updates,
                              Executor& executor) {
  TSPS_RETURN_IF_ERROR(PrepareStep(step, updates, executor));
  CommitStep();
  return Status();
}

namespace {

// Where in the table's list the planes of an assign are.
Result<std::vector<size_t>> FindPlanes(const TableFiles& files, const PlaneList& list,
                                       const std::vector<PlaneValues>& planes) {
  std::vector<size_t> found;
  for (const PlaneValues& one : planes) {
    const auto is_it = [&](const Plane& plane) {
      return plane.role == one.role && plane.name == one.name;
    };
    const auto plane = std::find_if(list.planes.begin(), list.planes.end(), is_it);
    if (plane == list.planes.end() || one.role == PlaneRole::kKey ||
        one.role == PlaneRole::kChanged) {
      return Error(Code::kInvalidArgument, "table ", files.folder(), " has no plane '", one.name,
                   "' that can be assigned (optimizer ", OptimizerKindName(list.optimizer.kind),
                   ")");
    }
    if (plane->row_bytes != one.row_bytes) {
      return Error(Code::kInvalidArgument, "plane '", one.name, "' of table ", files.folder(),
                   " has ", plane->row_bytes, " bytes per row. Received: ", one.row_bytes);
    }
    const auto position = static_cast<size_t>(plane - list.planes.begin());
    if (std::find(found.begin(), found.end(), position) != found.end()) {
      return Error(Code::kInvalidArgument, "plane '", one.name, "' of table ", files.folder(),
                   " is twice in an assign");
    }
    found.push_back(position);
  }
  return found;
}

}  // namespace

Status GroupWriter::Assign(int table, const int64_t* keys, const float* rows,
                           const float* const* slots, size_t n, Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TSPS_ASSIGN_OR_RETURN(
      const PlaneList* const list,
      group_.impl_->files(place)->BoundPlanes(impl_->state.tables[static_cast<size_t>(place)]));
  std::vector<PlaneValues> planes;
  for (size_t p = 0; p < (slots == nullptr ? 1 : list->trained()); ++p) {
    const Plane& plane = list->planes[p];
    planes.push_back({plane.role, plane.name, plane.row_bytes, p == 0 ? rows : slots[p - 1]});
  }
  return Assign(table, keys, planes, n, executor);
}

Status GroupWriter::Assign(int table, const int64_t* keys, const std::vector<PlaneValues>& values,
                           size_t n, Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TableFiles& files = *group_.impl_->files(place);
  const TableConfig& config = files.config();
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                        files.BoundPlanes(impl_->state.tables[static_cast<size_t>(place)]));
  TSPS_ASSIGN_OR_RETURN(const std::vector<size_t> at, FindPlanes(files, *list, values));
  size_t n_planes = 0;
  for (const size_t position : at) n_planes = std::max(n_planes, position + 1);
  TSPS_RETURN_IF_ERROR(CheckCount(config.name, n));
  TSPS_RETURN_IF_ERROR(CheckKeys(config, keys, n));
  std::vector<int32_t> inverse(n);
  const std::vector<int64_t> unique = Dedupe({{keys, n, inverse.data()}});
  std::vector<size_t> last(unique.size());
  for (size_t i = 0; i < n; ++i) last[static_cast<size_t>(inverse[i])] = i;

  RowMutation mutation(*group_.impl_, *impl_, group_.counters_, executor);
  mutation.Add(place, unique.data(), unique.size(), /*unique=*/true, n_planes);
  TSPS_RETURN_IF_ERROR(mutation.Plan());
  TSPS_RETURN_IF_ERROR(mutation.Prepare(/*is_step=*/false));
  const RowPlan& plan = mutation.plans()[0];
  const RowPlanes planes = mutation.Planes(plan);
  const auto write_rows = [&](const std::vector<uint32_t>& positions, bool fresh) {
    executor.ParallelFor(positions.size(), kUpdateGrain, [&](size_t begin, size_t end) {
      for (size_t k = begin; k < end; ++k) {
        const uint32_t i = positions[k];
        for (size_t v = 0; v < values.size(); ++v) {
          const size_t bytes = values[v].row_bytes;
          const auto* const from = static_cast<const char*>(values[v].values);
          std::memcpy(planes.at(static_cast<int>(at[v]), plan.rows[i]), from + last[i] * bytes,
                      bytes);
        }
        if (!fresh) planes.Touch(plan.rows[i]);
        TSPS_FAULT_POINT("assign.row");
      }
    });
  };
  mutation.InitializeFresh(plan);
  write_rows(plan.fresh, true);
  mutation.Begin();
  write_rows(plan.existing, false);
  ++mutation.next().version;
  mutation.Commit();
  return Status();
}

namespace {

// Adds keys to the log of erased ones, behind those of the committed state. A log that has become
// too long is emptied, which is remembered: what it had begins to be overwritten by the erase after
// this one, when no state has it any more.
Status LogErased(TableFiles& files, StorageReserver& reserver,
                 const std::vector<ErasedEntry>& erased, uint32_t generation, TableState* state) {
  const uint64_t length = state->erased + erased.size();
  if (length > TableFiles::MaxErased(state->live)) {
    state->erased = 0;
    state->complete_since = generation + 1;
    return Status();
  }
  TSPS_RETURN_IF_ERROR(reserver.Ensure(files.erased(), length * sizeof(ErasedKey)));
  for (const ErasedEntry& entry : erased) {
    const int64_t key = files.segment(entry.segment)->entries[entry.entry].key;
    files.erased_keys()[state->erased++] = {key, generation, 0};
  }
  return Status();
}

}  // namespace

Result<size_t> GroupWriter::Erase(int table, const int64_t* keys, size_t n) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  Group::Impl& group = *group_.impl_;
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TableFiles& files = *group.files(place);
  TSPS_RETURN_IF_ERROR(CheckCount(files.config().name, n));
  Mutation mutation(group, *impl_);
  TableState& state = mutation.next().tables[static_cast<size_t>(place)];
  std::vector<ErasedEntry> erased;
  std::vector<int32_t> inverse(n);
  for (const int64_t key : Dedupe({{keys, n, inverse.data()}})) {
    const uint64_t hash = files.Hash(key);
    const uint32_t number = files.directory_entries()[DirectoryPosition(hash, state.depth)];
    TSPS_RETURN_IF_ERROR(impl_->CheckSegmentOnce(files, place, number, Checked::kEntries));
    const Segment* segment = files.segment(number);
    if (const Entry* entry = FindInSegment(*segment, key, hash)) {
      erased.push_back(
          {number, static_cast<uint32_t>(entry - segment->entries), entry->row_plus_one});
    }
  }
  if (erased.empty()) return size_t{0};
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
  TSPS_RETURN_IF_ERROR(LogErased(files, impl_->reserver, erased, mutation.next().changes, &state));
  TSPS_RETURN_IF_ERROR(impl_->reserver.Ensure(
      files.free_rows(), (state.free_rows + erased.size()) * sizeof(uint32_t)));
  TSPS_RETURN_IF_ERROR(mutation.Start(UndoErasesBytes(erased.size())));
  UndoRecordHeader* record =
      mutation.Append(UndoKind::kErases, place, erased.size(), UndoErasesBytes(erased.size()));
  std::memcpy(UndoPayload(record), erased.data(), erased.size() * sizeof(ErasedEntry));
  mutation.Seal();
  std::vector<uint32_t> rows;
  for (const ErasedEntry& entry : erased) rows.push_back(entry.row_plus_one - 1);
  mutation.Touches(place, rows.data(), rows.size());
  mutation.Begin();
  for (const ErasedEntry& entry : erased) {
    StoreRelaxed(files.segment(entry.segment)->entries[entry.entry].row_plus_one, kTombstone);
    StoreRelaxed(list->changed_generations()[entry.row_plus_one - 1], kFreeRow);
    files.free_stack()[state.free_rows++] = entry.row_plus_one - 1;
    TSPS_FAULT_POINT("erase.entry");
  }
  state.live -= erased.size();
  ++mutation.next().version;
  mutation.Publish();
  return erased.size();
}

}  // namespace tsps
