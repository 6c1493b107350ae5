// The policies by which a writer's steps add and evict rows.
#include <memory>
#include <optional>
#include <utility>

#include "core/group/group.h"
#include "core/group/group_impl.h"

namespace tsps {

Status GroupWriter::SetEviction(int table, std::shared_ptr<const EvictionPolicy> policy) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TableFiles& files = *group_.impl_->files(place);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                        files.BoundPlanes(impl_->state.tables[static_cast<size_t>(place)]));
  if (policy != nullptr && !list->records_use()) {
    return Error(Code::kFailedPrecondition, "table ", files.folder(),
                 " cannot evict rows: it does not record the use of its rows");
  }
  if (policy != nullptr && files.config().storage.tiered()) {
    const uint64_t places = files.PlanOf(*list).rows_in_all;
    if (policy->max_rows > places) {
      return Error(Code::kInvalidArgument, "table ", files.folder(), ": eviction allows ",
                   policy->max_rows, " rows, and memory of ", files.config().storage.memory,
                   " bytes has space for the places of ", places,
                   ", in memory and on disk. Lower max_rows, or make the table with more memory");
    }
  }
  if (policy != nullptr && policy->half_life == 0) {
    return Error(Code::kInvalidArgument, "table ", files.folder(),
                 ": the half_life of eviction must be at least 1");
  }
  impl_->memory[static_cast<size_t>(place)].eviction = std::move(policy);
  return Status();
}

Result<bool> GroupWriter::SetAdmission(int table, std::shared_ptr<const AdmissionPolicy> policy) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  const TableConfig& config = group_.impl_->files(place)->config();
  if (policy != nullptr && (policy->count < 2 || policy->count > AdmissionSketch::kMostCount ||
                            policy->half_life == 0 || policy->lines == 0)) {
    return Error(Code::kInvalidArgument, "admission needs a count of 2 to ",
                 AdmissionSketch::kMostCount,
                 ", a half_life of steps and lines. Received: ", policy->count, ", ",
                 policy->half_life, " and ", policy->lines);
  }
  TSPS_ASSIGN_OR_RETURN(const std::optional<int> found, group_.SketchOf(table));
  int sketch = found.value_or(-1);
  TableMemory& memory = impl_->memory[static_cast<size_t>(place)];
  memory.admission = nullptr;
  bool forgotten = false;
  if (sketch >= 0) {
    TSPS_ASSIGN_OR_RETURN(const int sketch_place, impl_->PlaceOf(group_, sketch));
    TableFiles& files = *group_.impl_->files(sketch_place);
    const TableState& state = impl_->state.tables[static_cast<size_t>(sketch_place)];
    TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
    if (policy == nullptr || files.config().key_limit != SketchConfig(config, *policy).key_limit ||
        list->planes.back().name != SketchPlane(policy->count)) {
      forgotten = state.rows > 0;
      TSPS_RETURN_IF_ERROR(RemoveTable(sketch));
      sketch = -1;
    }
  }
  if (policy == nullptr) return forgotten;
  if (sketch < 0) {
    TSPS_ASSIGN_OR_RETURN(sketch, CreateTable(SketchConfig(config, *policy)));
  }
  memory.admission = std::move(policy);
  memory.sketch = sketch;
  return forgotten;
}

Status GroupWriter::StopPolicies(int table) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TableMemory& memory = impl_->memory[static_cast<size_t>(place)];
  memory.admission = nullptr;
  memory.eviction = nullptr;
  return Status();
}

}  // namespace tsps
