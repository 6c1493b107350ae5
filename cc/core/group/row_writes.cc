// GroupWriter's changes of rows, in several calls and in one.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/gradients/dedupe.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/row_mutation.h"

namespace tsps {

GroupWriter::Impl::Impl(const Group& group, ControlFile& control)
    : images(group.path(), control, reserver) {}
GroupWriter::Impl::~Impl() = default;

Status GroupWriter::Prepare(const RowChanges& changes, Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  auto mutation = std::make_unique<RowMutation>(*group_.impl_, *impl_, group_.counters_, executor);
  TSPS_RETURN_IF_ERROR(mutation->Plan(group_, changes));
  const Status reserved = mutation->Reserve();
  if (!reserved.ok()) {
    mutation.reset();
    if (reserved.code() == Code::kResourceExhausted) PlaceCopies(*group_.impl_, *impl_);
    return reserved;
  }
  impl_->prepared = std::move(mutation);
  return Status();
}

void GroupWriter::Write() noexcept { impl_->prepared->Write(); }

void GroupWriter::Seal(const Sealed& sealed) noexcept { impl_->prepared->Seal(sealed); }

bool GroupWriter::sealed() const { return impl_->prepared != nullptr && impl_->prepared->sealed(); }

void GroupWriter::Publish() noexcept {
  if (!impl_->prepared->written()) impl_->prepared->Write();
  impl_->prepared->Publish();
  impl_->prepared.reset();
}

void GroupWriter::Abort() noexcept {
  if (impl_->prepared != nullptr) impl_->prepared->Undo();
  impl_->prepared.reset();
}

Status GroupWriter::ApplyStep(uint64_t step, const std::vector<TableUpdate>& updates,
                              Executor& executor) {
  RowChanges changes;
  changes.step = step;
  changes.updates = updates;
  TSPS_RETURN_IF_ERROR(Prepare(changes, executor));
  Publish();
  return Status();
}

Status GroupWriter::Assign(int table, const int64_t* keys, const float* rows,
                           const float* const* slots, size_t n, Executor& executor,
                           const void* uses) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TSPS_ASSIGN_OR_RETURN(
      const PlaneList* const list,
      group_.impl_->files(place)->BoundPlanes(impl_->state.tables[static_cast<size_t>(place)]));
  const TableConfig& config = group_.impl_->files(place)->config();
  TSPS_ASSIGN_OR_RETURN(const StoredRows stored, StoredRows::Of(config, keys, rows, n));
  std::vector<PlaneValues> planes;
  for (size_t p = 0; p < (slots == nullptr ? 1 : 1 + list->slots()); ++p) {
    const Plane& plane = list->planes[p];
    planes.push_back(
        {plane.role, plane.name, plane.row_bytes, p == 0 ? stored.data() : slots[p - 1]});
  }
  if (uses != nullptr) planes.push_back({PlaneRole::kUse, kUsePlane, sizeof(RowUse), uses});
  return Assign(table, keys, planes, n, executor);
}

Status GroupWriter::Assign(int table, const int64_t* keys, const std::vector<PlaneValues>& planes,
                           size_t n, Executor& executor) {
  if (n > static_cast<size_t>(INT32_MAX)) {  // positions are 32 bits wide
    return Error(Code::kInvalidArgument, "table ", table, " of ", group_.path(),
                 ": at most 2147483647 keys at once. Received: ", n);
  }
  std::vector<int32_t> inverse(n);
  const std::vector<int64_t> unique = Dedupe({{keys, n, inverse.data()}});
  std::vector<uint32_t> last(unique.size());
  for (size_t i = 0; i < n; ++i) last[static_cast<size_t>(inverse[i])] = static_cast<uint32_t>(i);
  TSPS_ASSIGN_OR_RETURN(const size_t part, RowsAtOnce(table));
  for (size_t begin = 0; begin < unique.size() || begin == 0; begin += part) {
    RowChanges changes;
    changes.writes.push_back({table, unique.data() + begin, std::min(part, unique.size() - begin),
                              planes, last.data() + begin});
    TSPS_RETURN_IF_ERROR(Prepare(changes, executor));
    Publish();
  }
  return Status();
}

Result<size_t> GroupWriter::RowsAtOnce(int table) const {
  constexpr size_t kAll = SIZE_MAX / 2;
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TableFiles& files = *group_.impl_->files(place);
  if (!files.config().storage.tiered()) return kAll;
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                        files.BoundPlanes(impl_->state.tables[static_cast<size_t>(place)]));
  return std::max<size_t>(1, files.PlanOf(*list).rows / 4);
}

Result<size_t> GroupWriter::Erase(int table, const int64_t* keys, size_t n) {
  SerialExecutor executor;
  RowChanges changes;
  changes.erases.push_back({table, keys, n});
  TSPS_RETURN_IF_ERROR(Prepare(changes, executor));
  const size_t erased = impl_->prepared->n_erased();
  if (erased == 0) {
    Abort();
  } else {
    Publish();
  }
  return erased;
}

}  // namespace tsps
