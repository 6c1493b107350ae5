// Takes the changes that a caller asks for: checks them, and adds them to the plans of their
// tables.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/gradients/dedupe.h"
#include "core/group/row_mutation.h"
#include "core/table/row_optimizer.h"

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
      const bool metadata = plane.role == PlaneRole::kUse && values.role == PlaneRole::kMetadata;
      return (plane.role == values.role || metadata) && plane.name == values.name;
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

Result<RowPlan*> RowMutation::PlanOf(const Group& group, int table) {
  TSPS_ASSIGN_OR_RETURN(const int place, writer_.PlaceOf(group, table));
  for (RowPlan& plan : plans_) {
    if (plan.table == place) return &plan;
  }
  RowPlan& plan = plans_.emplace_back();
  plan.table = place;
  return &plan;
}

Status RowMutation::AddUpdate(const Group& group, const TableUpdate& update) {
  TSPS_ASSIGN_OR_RETURN(RowPlan* const plan, PlanOf(group, update.table));
  TableFiles& files = *group_.files(plan->table);
  const TableConfig& config = files.config();
  if (plan->update.has_value()) {
    return Error(Code::kInvalidArgument, "table ", config.name, " appears twice in step ", *step_);
  }
  const TableState& state = StateOf(*plan);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const planes, files.BoundPlanes(state));
  const OptimizerKind kind = planes->optimizer.kind;
  if (kind == OptimizerKind::kNone) {
    return Error(Code::kFailedPrecondition, "table ", group.path(), "/", config.name,
                 " has no optimizer bound");
  }
  if (SlotCount(kind) > 0 && optimizer_.id != 0 && state.optimizer_id != 0 &&
      state.optimizer_id != optimizer_.id) {
    return Error(
        Code::kFailedPrecondition, "table ", config.name,
        ": another optimizer has trained it since, and the slots are those of that optimizer. "
        "A table continues with the optimizer that trained it last. Train with that one, or "
        "make a new DistributedOptimizer, which starts with new slots. Nothing was changed");
  }
  // Without keys the hyperparameters are not checked: if no rank had any, they are an average of
  // none.
  const Status hyper = update.n > 0 ? ValidateHyper(kind, update.hyper, update.n_hyper) : Status();
  if (!hyper.ok()) {
    const char* const explanation =
        update.n_hyper == static_cast<size_t>(HyperCount(kind))
            ? ""
            : ", of another rule: the table was bound to this one meanwhile. All optimizers that "
              "train a table, for example of models that share a layer, must use the same rule "
              "for it (sparse_optimizer=, or the table's optimizer). Nothing was changed";
    return Error(hyper.code(), "table ", config.name, ": ", hyper.message(), explanation);
  }
  TSPS_RETURN_IF_ERROR(CheckCount(config.name, update.n));
  TSPS_RETURN_IF_ERROR(CheckKeys(config, update.keys, update.n));
  plan->update.emplace(
      RowPlan::Update{update, GradientRows(update, static_cast<size_t>(config.dim)), kind});
  plan->keys = update.keys;
  plan->n = update.n;
  return Status();
}

Status RowMutation::AddWrites(const Group& group, const TableWrites& writes) {
  TSPS_ASSIGN_OR_RETURN(RowPlan* const plan, PlanOf(group, writes.table));
  TableFiles& files = *group_.files(plan->table);
  const TableConfig& config = files.config();
  if (plan->writes.has_value()) {
    return Error(Code::kInvalidArgument, "rows of table ", config.name,
                 " are set twice in one change");
  }
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(StateOf(*plan)));
  TSPS_ASSIGN_OR_RETURN(plan->written_planes, FindPlanes(files, *list, writes.planes));
  for (const size_t plane : plan->written_planes) plan->planes = std::max(plan->planes, plane + 1);
  TSPS_RETURN_IF_ERROR(CheckCount(config.name, plan->n + writes.n));
  TSPS_RETURN_IF_ERROR(CheckKeys(config, writes.keys, writes.n));
  plan->writes = writes;
  if (plan->n == 0) {
    plan->keys = writes.keys;
  } else {
    plan->joined.assign(plan->keys, plan->keys + plan->n);
    plan->joined.insert(plan->joined.end(), writes.keys, writes.keys + writes.n);
    plan->keys = plan->joined.data();
  }
  plan->n += writes.n;
  return Status();
}

Status RowMutation::AddErases(const Group& group, const TableErases& erases) {
  TSPS_ASSIGN_OR_RETURN(RowPlan* const plan, PlanOf(group, erases.table));
  const std::string& name = group_.files(plan->table)->config().name;
  if (plan->erases) {
    return Error(Code::kInvalidArgument, "rows of table ", name, " are erased twice in one change");
  }
  plan->erases = true;
  TSPS_RETURN_IF_ERROR(CheckCount(name, erases.n));
  std::vector<int32_t> inverse(erases.n);
  plan->erase_keys = Dedupe({{erases.keys, erases.n, inverse.data()}});
  return Status();
}

Status RowMutation::CheckStep(const Group& group) const {
  if (!step_.has_value() || *step_ == writer_.state.step + 1) return Status();
  const char* const explanation =
      *step_ > writer_.state.step
          ? ""
          : ", because another optimizer made a step while this one was computed. Train the "
            "tables of a process in one thread, one optimizer after the other, or in several "
            "processes. Nothing was changed";
  return Error(Code::kFailedPrecondition, "step ", *step_, " cannot be applied to ", group.path(),
               ": step ", writer_.state.step, " is the last committed one", explanation);
}

Status RowMutation::Plan(const Group& group, const RowChanges& changes) {
  step_ = changes.step;
  optimizer_ = changes.optimizer;
  TSPS_RETURN_IF_ERROR(CheckStep(group));
  if (!step_.has_value() && !changes.updates.empty()) {
    return Error(Code::kInvalidArgument, "a change of ", group.path(),
                 " has updates of tables, which only a step may have");
  }
  for (const TableUpdate& update : changes.updates) TSPS_RETURN_IF_ERROR(AddUpdate(group, update));
  for (const TableWrites& writes : changes.writes) TSPS_RETURN_IF_ERROR(AddWrites(group, writes));
  for (const TableErases& erases : changes.erases) TSPS_RETURN_IF_ERROR(AddErases(group, erases));
  TSPS_RETURN_IF_ERROR(PlanTables());
  return PlanSketches(group);
}

Status RowMutation::PlanDemotions(int place, std::vector<int64_t> keys) {
  only_demotes_ = true;
  RowPlan& plan = plans_.emplace_back();
  plan.table = place;
  plan.moves.demoted = std::move(keys);
  return PlanTables();
}

}  // namespace tsps
