// The planes of a table, and its rows on disk, whose records have all of them.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "core/os/directory.h"
#include "core/table/row_records.h"
#include "core/table/table_files.h"
#include "core/tier/record_scan.h"

namespace tsps {
namespace {

// Prefixes of the names of files.
constexpr const char* kPlane = "plane.";
constexpr const char* kPlanes = "planes.";

bool IsOfGeneration(const std::string& name, uint32_t generation) {
  const std::string suffix = "." + std::to_string(generation);
  return TableFiles::IsPlaneFile(name) && name.size() > suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

}  // namespace

bool TableFiles::IsPlaneFile(const std::string& name) {
  return name.rfind(kPlane, 0) == 0 || name.rfind(kPlanes, 0) == 0;
}

std::string TableFiles::PlanePath(const Plane& plane) const {
  return folder_ + "/" + kPlane + plane.name + "." + std::to_string(plane.generation);
}

std::string TableFiles::ListPath(uint32_t generation) const {
  return folder_ + "/" + kPlanes + std::to_string(generation);
}

const PlaneList* TableFiles::Planes(const TableState& state) {
  const PlaneList* const latest = latest_.load(std::memory_order_acquire);
  if (latest != nullptr && latest->generation == state.planes) return latest;
  const auto list = BoundPlanes(state);
  if (!list.ok()) return nullptr;
  latest_.store(*list, std::memory_order_release);
  return *list;
}

Result<const PlaneList*> TableFiles::BoundPlanes(const TableState& state) {
  std::lock_guard<std::mutex> lock(planes_mutex_);
  for (const auto& known : lists_) {
    if (known->generation == state.planes) return known.get();
  }
  const std::string path = ListPath(state.planes);
  const auto file = MappedFile::Open(path, sizeof(PlaneListFile), kPageBytes);
  if (!file.ok()) return Error(Code::kDataLoss, folder_, ": ", file.status().message());
  PlaneListFile content;
  std::memcpy(&content, (*file)->data(), sizeof(content));
  TSPS_ASSIGN_OR_RETURN(PlaneList list, PlaneListFromFile(content, *config_, state.planes, path));
  for (Plane& plane : list.planes) {
    const Status mapped = MapPlane(&plane);
    if (mapped.ok()) continue;
    return Error(Code::kDataLoss, folder_, ": plane ", plane.name, ", with optimizer ",
                 OptimizerKindName(list.optimizer.kind), ", cannot be mapped: ", mapped.message());
  }
  TSPS_RETURN_IF_ERROR(CheckInPlace());  // otherwise they may be those of another table
  return Keep(std::move(list));
}

Status TableFiles::MapPlane(Plane* plane) {
  const std::string path = PlanePath(*plane);
  for (const auto& known : plane_files_) {
    if (known->path() == path) plane->file = known.get();
  }
  if (plane->file != nullptr) return Status();
  TSPS_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, 0, RoomRows() * plane->row_bytes));
  if (writable_) TSPS_RETURN_IF_ERROR(file->MakeWritable());
  plane->file = file.get();
  plane_files_.push_back(std::move(file));
  return Status();
}

const PlaneList* TableFiles::Keep(PlaneList list) {
  lists_.push_back(std::make_unique<const PlaneList>(std::move(list)));
  const PlaneList* const kept = lists_.back().get();
  // A later list becomes the latest when a state names it, because its binding may still fail.
  const PlaneList* none = nullptr;
  latest_.compare_exchange_strong(none, kept, std::memory_order_acq_rel);
  return kept;
}

Status TableFiles::MakePlanes(PlaneList list, uint32_t generation, uint64_t rows) {
  std::lock_guard<std::mutex> lock(planes_mutex_);
  for (Plane& plane : list.planes) {
    if (plane.generation != generation) {
      TSPS_RETURN_IF_ERROR(MapPlane(&plane));
      continue;
    }
    const size_t bytes = std::max<size_t>(kPageBytes, rows * plane.row_bytes);
    TSPS_ASSIGN_OR_RETURN(
        auto file, MappedFile::Create(PlanePath(plane), bytes, RoomRows() * plane.row_bytes));
    plane.file = file.get();
    plane.Initialize(0, rows);
    plane_files_.push_back(std::move(file));
  }
  // The list is last: the generation exists only if its list does.
  const PlaneListFile content = PlaneListToFile(list);
  TSPS_ASSIGN_OR_RETURN(const auto file,
                        MappedFile::Create(ListPath(generation), kPageBytes, kPageBytes));
  std::memcpy(file->data(), &content, sizeof(content));
  Keep(std::move(list));
  return Status();
}

// Such a binding was killed or has failed, in another process or in this one.
void TableFiles::ForgetPlanes(uint32_t generation) {
  for (const std::string& name : EntriesOf(folder_)) {
    if (IsOfGeneration(name, generation)) unlink((folder_ + "/" + name).c_str());
  }
  const std::lock_guard<std::mutex> lock(planes_mutex_);
  const auto has_generation = [generation](const auto& list) {
    return list->generation == generation;
  };
  const auto first = std::find_if(lists_.begin(), lists_.end(), has_generation);
  if (first == lists_.end()) return;
  for (const Plane& plane : (*first)->planes) {
    if (plane.generation != generation) continue;
    plane_files_.erase(std::find_if(plane_files_.begin(), plane_files_.end(),
                                    [&](const auto& file) { return file.get() == plane.file; }));
  }
  lists_.erase(first);
  records_.erase(generation);
}

Status TableFiles::CreatePlanes(const TableState& state, const OptimizerConfig& optimizer) {
  TSPS_RETURN_IF_ERROR(CheckInPlace());
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const bound, BoundPlanes(state));
  const uint32_t generation = state.planes + 1;
  ForgetPlanes(generation);
  TableConfig config = *config_;
  config.metadata = MetadataOf(*bound);
  // A tiered table has no rows in memory now. All its planes are new, because the new slots change
  // how many rows fit into its memory.
  const bool all_new = config.storage.tiered();
  PlaneList next =
      PlanesOf(config, optimizer, generation, all_new ? generation : bound->embedding().generation);
  return MakePlanes(std::move(next), generation, all_new ? 0 : state.rows);
}

Status TableFiles::RemoveOtherPlanes(const TableState& state) {
  TSPS_RETURN_IF_ERROR(CheckInPlace());
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, BoundPlanes(state));
  std::set<std::string> current = {ListPath(state.planes)};
  for (const Plane& plane : list->planes) current.insert(PlanePath(plane));
  std::vector<std::string> unbound;
  for (const std::string& name : EntriesOf(folder_)) {
    const std::string path = folder_ + "/" + name;
    if (!IsPlaneFile(name) || current.count(path) != 0) continue;
    if (IsOfGeneration(name, state.planes)) {
      return Damaged(folder_, name, " is no plane of a table with optimizer ",
                     OptimizerKindName(list->optimizer.kind));
    }
    unbound.push_back(path);
  }
  for (const std::string& path : unbound) unlink(path.c_str());
  return Status();
}

Result<RecordStore*> TableFiles::Records(const TableState& state) {
  if (!config_->storage.tiered()) return static_cast<RecordStore*>(nullptr);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, BoundPlanes(state));
  std::lock_guard<std::mutex> lock(planes_mutex_);
  std::unique_ptr<RecordStore>& records = records_[state.planes];
  if (records == nullptr) {
    auto opened = OpenRecords(folder_, *config_, *list, state.index_seed);
    if (!opened.ok()) {
      records_.erase(state.planes);
      return opened.status();
    }
    records = std::move(*opened);
  }
  return records.get();
}

MemoryPlan TableFiles::PlanOf(const PlaneList& list) const {
  return PlanMemory(config_->storage, RowCost(list), MostRows(*config_));
}

namespace {

// Converts records of one list of planes to another list. Slots get their initial values.
class RecordConversion {
 public:
  RecordConversion(const PlaneList& from, const PlaneList& to) : to_(to), bytes_(to.planes.size()) {
    planes_.resize(from.planes.size(), nullptr);
    for (size_t t = 0; t < to.planes.size(); ++t) {
      const Plane& plane = to.planes[t];
      bytes_[t].resize(plane.row_bytes);
      if (plane.role == PlaneRole::kSlot) plane.Fill(bytes_[t].data(), 1);
      for (size_t f = 0; f < from.planes.size(); ++f) {
        const Plane& source = from.planes[f];
        if (source.role != plane.role || source.name != plane.name ||
            source.role == PlaneRole::kSlot) {
          continue;
        }
        planes_[f] = bytes_[t].data();
      }
    }
    records_ = std::make_unique<RowRecords>(from);
  }
  size_t bytes() const { return RowRecords(to_).bytes(); }
  // Appends the converted record.
  void Append(const char* record, std::vector<char>* to) {
    records_->Split(record, 0, planes_.data());
    for (size_t t = 0; t < to_.planes.size(); ++t) {
      if (to_.planes[t].role == PlaneRole::kKey) continue;
      to->insert(to->end(), bytes_[t].begin(), bytes_[t].end());
    }
  }

 private:
  const PlaneList& to_;
  std::vector<std::vector<char>> bytes_;  // the bytes of a row in each new plane
  std::vector<char*> planes_;
  std::unique_ptr<RowRecords> records_;
};

}  // namespace

Result<uint32_t> TableFiles::ConvertRecords(const TableState& state, uint64_t index_seed) {
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const from, BoundPlanes(state));
  TSPS_ASSIGN_OR_RETURN(RecordStore* const old, Records(state));
  TableState next = state;
  ++next.planes;
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const to, BoundPlanes(next));
  TSPS_RETURN_IF_ERROR(CheckDisk(*config_, *to));
  TSPS_ASSIGN_OR_RETURN(auto converted, CreateRecords(folder_, *config_, *to, index_seed));
  TSPS_ASSIGN_OR_RETURN(const auto scan,
                        RecordScan::Begin(*old, state.moves, [] { return Status(); }));
  if (scan == nullptr) return Error(Code::kInternal, folder_, ": rows on disk move");
  RecordConversion conversion(*from, *to);
  const size_t bytes = conversion.bytes();
  while (true) {
    std::vector<int64_t> keys;
    std::vector<char> payloads;
    TSPS_ASSIGN_OR_RETURN(const bool more, scan->Next([&](int64_t key, const char* payload) {
      keys.push_back(key);
      conversion.Append(payload, &payloads);
    }));
    if (!more) break;
    TSPS_RETURN_IF_ERROR(
        converted->Leave({nullptr, nullptr, 0}, keys.size(), [&](size_t i, char* payload) {
          std::copy_n(payloads.data() + i * bytes, bytes, payload);
          return keys[i];
        }));
    converted->Declare();
    converted->Finish(/*published=*/true);
  }
  return converted->next_number() - 1;
}

}  // namespace tsps
