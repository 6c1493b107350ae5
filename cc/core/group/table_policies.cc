// The policies by which a writer's steps add and evict rows.
#include <memory>
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
  if (policy != nullptr && (!list->records_use() || files.config().storage.tiered())) {
    return Error(Code::kFailedPrecondition, "table ", files.folder(), " cannot evict rows: it ",
                 list->records_use() ? "has rows on disk" : "does not record the use of its rows");
  }
  if (policy != nullptr && policy->half_life == 0) {
    return Error(Code::kInvalidArgument, "table ", files.folder(),
                 ": the half_life of eviction must be at least 1");
  }
  impl_->memory[static_cast<size_t>(place)].eviction = std::move(policy);
  return Status();
}

Status GroupWriter::SetAdmission(int table, std::shared_ptr<const AdmissionPolicy> policy,
                                 int sketch) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  if (policy != nullptr) {
    if (policy->count < 2 || policy->count > AdmissionSketch::kMostCount ||
        policy->half_life == 0) {
      return Error(
          Code::kInvalidArgument, "admission needs a count of 2 to ", AdmissionSketch::kMostCount,
          " and a half_life of steps. Received: ", policy->count, " and ", policy->half_life);
    }
    TSPS_ASSIGN_OR_RETURN(const int sketch_place, impl_->PlaceOf(group_, sketch));
    TableFiles& files = *group_.impl_->files(sketch_place);
    TSPS_ASSIGN_OR_RETURN(
        const PlaneList* const list,
        files.BoundPlanes(impl_->state.tables[static_cast<size_t>(sketch_place)]));
    const Plane& last = list->planes.back();
    if (sketch == table || files.config().key_limit < 1 ||
        last.name != SketchPlane(policy->count) || last.row_bytes != sizeof(SketchLine)) {
      return Error(Code::kFailedPrecondition, "table ", files.folder(), " is no sketch for table ",
                   group_.impl_->files(place)->folder());
    }
  }
  TableMemory& memory = impl_->memory[static_cast<size_t>(place)];
  memory.admission = std::move(policy);
  memory.sketch = sketch;
  return Status();
}

}  // namespace tsps
