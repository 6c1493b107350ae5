#include "core/group/mapped_tables.h"

#include <utility>

#include "core/group/table_number.h"

namespace tsps {

Result<std::shared_ptr<TableFiles>> MappedTables::Open(const std::string& group_path,
                                                       ControlFile& control, size_t place,
                                                       const TableState& table) {
  const std::string folder = group_path + "/" + control.TableName(place);
  auto files = TableFiles::Open(folder);
  if (!files.ok() && files.status().code() == Code::kNotFound) {
    return Error(Code::kDataLoss, "table ", folder,
                 " is incomplete or was removed: ", files.status().message());
  }
  TSPS_RETURN_IF_ERROR(files.status());
  TSPS_RETURN_IF_ERROR(control.file().CheckInPlace());  // otherwise they may be another group's
  TSPS_RETURN_IF_ERROR((*files)->CheckState(table));
  return std::shared_ptr<TableFiles>(std::move(*files));
}

Status MappedTables::Map(const std::string& group_path, ControlFile& control, const State& state,
                         const std::vector<size_t>& places) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<List> list = Copy();
  if (list->size() < state.tables.size()) list->resize(state.tables.size());
  for (const size_t place : places) {
    const TableState& table = state.tables[place];
    if ((*list)[place].Is(table.removed)) continue;
    TSPS_ASSIGN_OR_RETURN(auto files, Open(group_path, control, place, table));
    (*list)[place] = {std::move(files), table.removed};
  }
  Set(std::move(list));
  return Status();
}

void MappedTables::DropRemoved(const State& state) {
  if (looked_at_.load(std::memory_order_acquire) == state.version) return;
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<List> kept;
  for (size_t place = 0; !owned_ && place < list_->size(); ++place) {
    if ((*list_)[place].files == nullptr) continue;
    const MappedTable& mapped = (*list_)[place];
    const bool exists = place < state.tables.size() && !IsVacant(state.tables[place]) &&
                        mapped.Is(state.tables[place].removed);
    if (exists && !mapped.files->HasOtherPlanes(state.tables[place].planes)) continue;
    if (kept == nullptr) kept = Copy();
    (*kept)[place] = {};
  }
  if (kept != nullptr) Set(std::move(kept));
  // Stored last: a thread that sees this version skips the work, so it must not find dropped
  // tables.
  looked_at_.store(state.version, std::memory_order_release);
}

void MappedTables::Forget(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t place = 0; !owned_ && place < list_->size(); ++place) {
    const TableFiles* const files = (*list_)[place].files.get();
    if (files == nullptr || files->config().name != name) continue;
    std::shared_ptr<List> kept = Copy();
    (*kept)[place] = {};
    Set(std::move(kept));
  }
}

void MappedTables::Own() {
  std::lock_guard<std::mutex> lock(mutex_);
  owned_ = true;
}

void MappedTables::Disown() {
  std::lock_guard<std::mutex> lock(mutex_);
  owned_ = false;
}

TableFiles* MappedTables::files(size_t place) const {
  const std::shared_ptr<const List> now = list();
  return place < now->size() ? (*now)[place].files.get() : nullptr;
}

void MappedTables::Put(size_t place, uint64_t removed, std::shared_ptr<TableFiles> files) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<List> list = Copy();
  if (list->size() <= place) list->resize(place + 1);
  (*list)[place] = {std::move(files), removed};
  Set(std::move(list));
}

void MappedTables::Drop(size_t place) { Put(place, 0, nullptr); }

}  // namespace tsps
