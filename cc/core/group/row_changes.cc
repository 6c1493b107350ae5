#include "core/group/row_changes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/fault_point.h"
#include "core/gradients/merge.h"

namespace tsps {
namespace {

// Positions of keys are 32 bits wide.
Status CheckCount(const std::string& table, size_t n) {
  if (n <= static_cast<size_t>(INT32_MAX)) return Status();
  return Error(Code::kInvalidArgument, "table ", table,
               ": at most 2147483647 keys at once. Received: ", n);
}

// Returns the positions in the table's list of the planes that are written.
Result<std::vector<size_t>> FindPlanes(const TableFiles& files, const PlaneList& list,
                                       const std::vector<PlaneValues>& planes) {
  std::vector<size_t> positions;
  for (const PlaneValues& values : planes) {
    const auto matches = [&](const Plane& plane) {
      return plane.role == values.role && plane.name == values.name;
    };
    const auto plane = std::find_if(list.planes.begin(), list.planes.end(), matches);
    if (plane == list.planes.end() || values.role == PlaneRole::kKey ||
        values.role == PlaneRole::kChanged) {
      return Error(Code::kInvalidArgument, "table ", files.folder(), " has no plane '", values.name,
                   "' that can be assigned (optimizer ", OptimizerKindName(list.optimizer.kind),
                   ")");
    }
    if (plane->row_bytes != values.row_bytes) {
      return Error(Code::kInvalidArgument, "plane '", values.name, "' of table ", files.folder(),
                   " has ", plane->row_bytes, " bytes per row. Received: ", values.row_bytes);
    }
    const auto position = static_cast<size_t>(plane - list.planes.begin());
    if (std::find(positions.begin(), positions.end(), position) != positions.end()) {
      return Error(Code::kInvalidArgument, "plane '", values.name, "' of table ", files.folder(),
                   " is written twice");
    }
    positions.push_back(position);
  }
  return positions;
}

}  // namespace

GradientRows::GradientRows(const TableUpdate& update, size_t dim)
    : dim_(dim), pieces_(update.pieces) {
  if (pieces_.empty()) pieces_.push_back({update.gradients, update.n});
  size_t end = 0;
  for (const TableUpdate::Piece& piece : pieces_) ends_.push_back(end += piece.n);
}

const float* GradientRows::at(size_t i) const {
  if (i < ends_[0]) return pieces_[0].rows + i * dim_;
  const size_t p =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
  return pieces_[p].rows + (i - ends_[p - 1]) * dim_;
}

int64_t GradientRows::FirstNonFinite(Executor& executor) const {
  size_t before = 0;
  for (const TableUpdate::Piece& piece : pieces_) {
    const int64_t row = FirstNonFiniteRow(piece.rows, piece.n, dim_, executor);
    if (row >= 0) return static_cast<int64_t>(before) + row;
    before += piece.n;
  }
  return -1;
}

Result<PreparedChanges::Part*> PreparedChanges::PartOf(const Group& group, int table) {
  TSPS_ASSIGN_OR_RETURN(const int place, writer_.PlaceOf(group, table));
  const auto is_of_table = [&](const Part& part) { return part.table == place; };
  auto part = std::find_if(parts_.begin(), parts_.end(), is_of_table);
  if (part == parts_.end()) {
    parts_.push_back({place});
    part = parts_.end() - 1;
  }
  return &*part;
}

Status PreparedChanges::AddUpdate(const Group& group, const TableUpdate& update) {
  TSPS_ASSIGN_OR_RETURN(Part* const part, PartOf(group, update.table));
  const TableFiles& files = *group_.files(part->table);
  const TableConfig& config = files.config();
  if (!part->update.empty()) {
    return Error(Code::kInvalidArgument, "table ", config.name, " appears twice in step ", *step_);
  }
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const planes,
                        group_.files(part->table)
                            ->BoundPlanes(writer_.state.tables[static_cast<size_t>(part->table)]));
  part->kind = planes->optimizer.kind;
  if (part->kind == OptimizerKind::kNone) {
    return Error(Code::kFailedPrecondition, "table ", group.path(), "/", config.name,
                 " has no optimizer bound");
  }
  const TableState& state = writer_.state.tables[static_cast<size_t>(part->table)];
  if (SlotCount(part->kind) > 0 && optimizer_.id != 0 && state.optimizer_id != 0 &&
      state.optimizer_id != optimizer_.id) {
    return Error(
        Code::kFailedPrecondition, "table ", config.name,
        ": another optimizer has trained it since, and the slots are those of that optimizer. "
        "A table continues with the optimizer that trained it last. Train with that one, or "
        "make a new DistributedOptimizer, which starts with new slots. Nothing was changed");
  }
  // Without keys the hyperparameters are not checked: if no rank had any, they are an average of
  // none.
  const Status hyper =
      update.n > 0 ? ValidateHyper(part->kind, update.hyper, update.n_hyper) : Status();
  if (!hyper.ok()) {
    const char* const explanation =
        update.n_hyper == static_cast<size_t>(HyperCount(part->kind))
            ? ""
            : ", of another rule: the table was bound to this one meanwhile. All optimizers that "
              "train a table, for example of models that share a layer, must use the same rule "
              "for it (sparse_optimizer=, or the table's optimizer). Nothing was changed";
    return Error(hyper.code(), "table ", config.name, ": ", hyper.message(), explanation);
  }
  TSPS_RETURN_IF_ERROR(CheckCount(config.name, update.n));
  TSPS_RETURN_IF_ERROR(CheckKeys(config, update.keys, update.n));
  part->update.push_back(update);
  part->gradients.emplace_back(update, static_cast<size_t>(config.dim));
  mutation_.AddUpdates(part->table, update.keys, update.n);
  return Status();
}

Status PreparedChanges::AddWrites(const Group& group, const TableWrites& writes) {
  TSPS_ASSIGN_OR_RETURN(Part* const part, PartOf(group, writes.table));
  TableFiles& files = *group_.files(part->table);
  const TableConfig& config = files.config();
  if (!part->writes.empty()) {
    return Error(Code::kInvalidArgument, "rows of table ", config.name,
                 " are set twice in one change");
  }
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                        files.BoundPlanes(writer_.state.tables[static_cast<size_t>(part->table)]));
  TSPS_ASSIGN_OR_RETURN(part->planes, FindPlanes(files, *list, writes.planes));
  size_t n_planes = 0;
  for (const size_t position : part->planes) n_planes = std::max(n_planes, position + 1);
  const size_t updates = part->update.empty() ? 0 : part->update[0].n;
  TSPS_RETURN_IF_ERROR(CheckCount(config.name, updates + writes.n));
  TSPS_RETURN_IF_ERROR(CheckKeys(config, writes.keys, writes.n));
  part->writes.push_back(writes);
  mutation_.AddWrites(part->table, writes.keys, writes.n, n_planes);
  return Status();
}

Status PreparedChanges::AddErases(const Group& group, const TableErases& erases) {
  TSPS_ASSIGN_OR_RETURN(Part* const part, PartOf(group, erases.table));
  const std::string& name = group_.files(part->table)->config().name;
  if (part->erases) {
    return Error(Code::kInvalidArgument, "rows of table ", name, " are erased twice in one change");
  }
  part->erases = true;
  TSPS_RETURN_IF_ERROR(CheckCount(name, erases.n));
  mutation_.AddErases(part->table, erases.keys, erases.n);
  return Status();
}

Status PreparedChanges::Prepare(const Group& group, const RowChanges& changes) {
  step_ = changes.step;
  optimizer_ = changes.optimizer;
  if (step_.has_value() && *step_ != writer_.state.step + 1) {
    const char* const explanation =
        *step_ > writer_.state.step
            ? ""
            : ", because another optimizer made a step while this one was computed. Train the "
              "tables of a process in one thread, one optimizer after the other, or in several "
              "processes. Nothing was changed";
    return Error(Code::kFailedPrecondition, "step ", *step_, " cannot be applied to ", group.path(),
                 ": step ", writer_.state.step, " is the last committed one", explanation);
  }
  if (!step_.has_value() && !changes.updates.empty()) {
    return Error(Code::kInvalidArgument, "a change of ", group.path(),
                 " has updates of tables, which only a step may have");
  }
  for (const TableUpdate& update : changes.updates) TSPS_RETURN_IF_ERROR(AddUpdate(group, update));
  for (const TableWrites& writes : changes.writes) TSPS_RETURN_IF_ERROR(AddWrites(group, writes));
  for (const TableErases& erases : changes.erases) TSPS_RETURN_IF_ERROR(AddErases(group, erases));
  std::vector<int64_t> not_finite(parts_.size(), -1);
  const Status planned = mutation_.Plan([&](size_t p) {
    if (!parts_[p].update.empty()) {
      not_finite[p] = parts_[p].gradients[0].FirstNonFinite(executor_);
    }
  });
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (not_finite[p] < 0) continue;
    return Error(Code::kInvalidArgument, "table ", group_.files(parts_[p].table)->config().name,
                 ": the gradient of key ", parts_[p].update[0].keys[not_finite[p]],
                 " is not finite; step ", *step_, " was not applied");
  }
  TSPS_RETURN_IF_ERROR(planned);
  return mutation_.Prepare(/*is_step=*/step_.has_value());
}

void PreparedChanges::UpdateRows(size_t p, const uint32_t* positions, size_t n, bool fresh) {
  if (n == 0) return;
  const RowPlan& plan = mutation_.plans()[p];
  const RowPlanes planes = mutation_.Planes(plan);
  const auto trained = static_cast<int>(planes.list.trained());
  const GradientRows& gradients = parts_[p].gradients[0];
  const TableUpdate& update = parts_[p].update[0];
  StoredRowUpdater updater(group_.files(plan.table)->config(), parts_[p].kind, update.hyper,
                           update.n_hyper, *step_);
  float* slot_rows[kMaxSlots] = {};
  for (size_t k = 0; k < n; ++k) {
    if (k + RowPlanes::kAhead < n) {
      const uint32_t next = plan.rows[positions[k + RowPlanes::kAhead]];
      for (int plane = 0; plane < trained; ++plane) planes.Prefetch(plane, next);
      planes.PrefetchChanged(next);
    }
    const uint32_t i = positions[k];
    for (int plane = 1; plane < trained; ++plane) {
      slot_rows[plane - 1] = planes.floats(plane, plan.rows[i]);
    }
    updater.Update(plan.keys[i], gradients.at(i), planes.at(0, plan.rows[i]), slot_rows);
    if (!fresh) planes.Touch(plan.rows[i]);
    TSPS_FAULT_POINT("apply.row");
  }
}

void PreparedChanges::SetRows(size_t p, const uint32_t* positions, size_t n, bool fresh) {
  if (n == 0) return;
  const RowPlan& plan = mutation_.plans()[p];
  const RowPlanes planes = mutation_.Planes(plan);
  const TableWrites& writes = parts_[p].writes[0];
  for (size_t k = 0; k < n; ++k) {
    const uint32_t i = positions[k];
    const size_t at = i - plan.updates;
    const size_t from = writes.positions == nullptr ? at : writes.positions[at];
    for (size_t v = 0; v < writes.planes.size(); ++v) {
      const PlaneValues& plane_values = writes.planes[v];
      std::memcpy(planes.at(static_cast<int>(parts_[p].planes[v]), plan.rows[i]),
                  static_cast<const char*>(plane_values.values) + from * plane_values.row_bytes,
                  plane_values.row_bytes);
    }
    if (!fresh) planes.Touch(plan.rows[i]);
    TSPS_FAULT_POINT("assign.row");
  }
}

void PreparedChanges::WriteRows(size_t p, bool fresh) {
  const RowPlan& plan = mutation_.plans()[p];
  const std::vector<uint32_t>& positions = fresh ? plan.fresh : plan.existing;
  executor_.ParallelFor(UndoBlocks(positions.size()), 1, [&](size_t first, size_t last) {
    for (size_t block = first; block < last; ++block) {
      if (!fresh) mutation_.SaveImages(p, block);
      const uint32_t* const begin = positions.data() + block * kUndoBlock;
      const uint32_t* const end = begin + UndoBlockRows(positions.size(), block);
      // The keys of updates come first.
      const uint32_t* const set = std::lower_bound(begin, end, plan.updates);
      UpdateRows(p, begin, static_cast<size_t>(set - begin), fresh);
      SetRows(p, set, static_cast<size_t>(end - set), fresh);
    }
  });
}

void PreparedChanges::Write() {
  if (mutation_.HasFresh()) {
    mutation_.ForEachPlan([&](size_t p) {
      mutation_.InitializeFresh(mutation_.plans()[p], parts_[p].planes);
      WriteRows(p, /*fresh=*/true);  // no reader can see these rows yet
    });
  }
  mutation_.Begin();
  mutation_.ForEachPlan([&](size_t p) { WriteRows(p, /*fresh=*/false); });
  mutation_.WriteIndex();
  State& next = mutation_.next();
  for (const Part& part : parts_) {
    TableState& state = next.tables[static_cast<size_t>(part.table)];
    if (!step_.has_value()) {
      ++state.version;
    } else if (!part.update.empty() && optimizer_.id != 0) {
      state.optimizer_id = optimizer_.id;
      state.optimizer_steps = optimizer_.steps;
    }
  }
  if (step_.has_value()) {
    next.step = *step_;
  } else {
    ++next.version;
  }
  written_ = true;
}

void PreparedChanges::Seal(const Sealed& sealed) {
  mutation_.Seal(sealed);
  sealed_ = true;
}

void PreparedChanges::Publish() {
  mutation_.Publish();
  if (!step_.has_value()) return;
  counters_.steps_applied.fetch_add(1, std::memory_order_relaxed);
  uint64_t rows = 0;
  for (const RowPlan& plan : mutation_.plans()) rows += plan.n;
  counters_.rows_written.fetch_add(rows, std::memory_order_relaxed);
}

}  // namespace tsps
