#include "core/group/scan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/group/group_impl.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

constexpr uint64_t kLeastLimit = 1u << 30;
constexpr size_t kLookupScans = kMaxScans / 2;

// Returns the planes that a scan reads, as bits of positions in the list.
uint64_t WantedPlanes(const PlaneList& list, const Scan::Options& options) {
  uint64_t wanted = 0;
  for (size_t p = 0; p < list.planes.size(); ++p) {
    const PlaneRole role = list.planes[p].role;
    const bool always = role == PlaneRole::kKey || role == PlaneRole::kChanged;
    const bool asked =
        role == PlaneRole::kEmbedding ? options.embedding : options.slots_and_metadata;
    if (always || asked) wanted |= uint64_t{1} << p;
  }
  return wanted;
}

// Adds space for rows that are added before the scan begins.
uint64_t WithMargin(uint64_t rows) {
  return std::min<uint64_t>(rows + rows / 16 + (1u << 16), kMaxRowNumber);
}

}  // namespace

Result<std::unique_ptr<Scan>> Scan::Begin(Group& group, const std::vector<int>& tables,
                                          const Options& options) {
  const uint64_t began = NowNs();
  const uint64_t deadline = began + static_cast<uint64_t>(options.timeout_s * 1e9);
  std::vector<int> places = tables;
  if (places.empty()) {
    TSPS_ASSIGN_OR_RETURN(places, group.Tables());
  }
  bool map_again = false;
  while (NowNs() <= deadline) {
    const uint64_t lost_ns = NowNs() - began;  // in attempts that a mutation made useless
    std::unique_ptr<Scan> scan(new Scan(group, places, options));
    TSPS_ASSIGN_OR_RETURN(const Attempt attempt, scan->TryBegin(map_again, deadline));
    map_again = attempt == Attempt::kTablesChanged;
    if (attempt != Attempt::kBegun) continue;
    scan->waited_ns_ += lost_ns;
    RaiseMax(group.counters().read_blocked_ns_max, scan->waited_ns_);
    group.counters().read_blocked_ns_total.fetch_add(scan->waited_ns_, std::memory_order_relaxed);
    return scan;
  }
  return Error(Code::kUnavailable, "a scan of ", group.path(), " could not begin within ",
               options.timeout_s, " s: its tables change all the time");
}

Result<Scan::Attempt> Scan::TryBegin(bool map_again, uint64_t deadline) {
  // The approximate sizes of the tables. This does not wait if the process has them mapped.
  State approximate;
  group_.impl_->control->LoadLastState(&approximate);
  if (map_again || !IsMapped(group_, tables_, approximate)) {
    TSPS_RETURN_IF_ERROR(ReadState(&approximate));
  }
  TSPS_ASSIGN_OR_RETURN(bool announced, Announce(approximate, deadline));
  if (announced) {
    TSPS_ASSIGN_OR_RETURN(announced, AwaitState(deadline));
    if (announced && !Fits()) return Attempt::kStateChanged;
  }
  if (!announced) {
    announcement_.reset();
    TSPS_RETURN_IF_ERROR(ReadState(&state_));
  }
  if (!MapTables()) return Attempt::kTablesChanged;
  for (Part& part : parts_) {
    TSPS_ASSIGN_OR_RETURN(const bool begun, BeginRecords(part));
    if (!begun) return Attempt::kStateChanged;
  }
  if (sealed_ != 0) {
    TSPS_ASSIGN_OR_RETURN(const bool taken, TakeSealed());
    if (!taken) return Attempt::kStateChanged;
  }
  return Attempt::kBegun;
}

Status Scan::ReadState(State* state) {
  const auto read = [&](const ReadView& view) {
    for (const int table : tables_) static_cast<void>(view.Mapped(table));
    *state = view.state_;
    return Status();
  };
  return group_.Read(read, options_.timeout_s);
}

bool Scan::IsMapped(const Group& group, const std::vector<int>& tables, const State& state) {
  const std::shared_ptr<const MappedTables::List> mapped = group.impl_->tables.list();
  for (const int table : tables) {
    const size_t place = PlaceOf(table);
    if (table < 0 || place >= state.tables.size() || place >= mapped->size()) return false;
    if (IsVacant(state.tables[place]) || state.tables[place].removed != RemovedBefore(table)) {
      return false;
    }
    if (!(*mapped)[place].Is(RemovedBefore(table))) return false;
    if ((*mapped)[place].files->Planes(state.tables[place]) == nullptr) return false;
  }
  return true;
}

Result<bool> Scan::Announce(const State& state, uint64_t deadline) {
  // Kept to the end: another thread may drop a table, and its planes with it.
  const std::shared_ptr<const MappedTables::List> mapped = group_.impl_->tables.list();
  std::vector<ScanFile::Wanted> wanted;
  uint64_t bytes = 0;
  for (const int table : tables_) {
    const TableState& table_state = state.tables[PlaceOf(table)];
    const size_t place = PlaceOf(table);
    if (place >= mapped->size() || !(*mapped)[place].Is(table_state.removed)) return false;
    TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                          (*mapped)[place].files->BoundPlanes(table_state));
    bytes += table_state.rows * RowBytes(*list, list->planes.size());
    wanted.push_back({PlaceOf(table), table_state.removed, table_state.planes,
                      WithMargin(table_state.rows), WantedPlanes(*list, options_)});
  }
  const uint64_t limit =
      options_.limit != 0 ? options_.limit : std::max<uint64_t>(bytes / 4, kLeastLimit);
  auto announcement = ScanAnnouncement::Make(group_.path(), *group_.impl_->control, wanted, limit,
                                             options_.lookup ? kLookupScans : kMaxScans,
                                             options_.lookup ? 0 : deadline);
  if (announcement.ok()) {
    announcement_ = std::move(*announcement);
    return true;
  }
  if (announcement.status().code() != Code::kFailedPrecondition) return announcement.status();
  not_announced_ = announcement.status().message();
  return false;
}

Result<bool> Scan::AwaitState(uint64_t deadline) {
  Group::Impl& impl = *group_.impl_;
  const uint64_t began = NowNs();
  MutationWait wait(impl);
  while (true) {
    const uint64_t sequence = impl.control->LoadLastState(&state_);
    // A mutation in progress that has seen the announcement has saved images before it wrote
    // anything: they lead back to the state before it.
    const bool before = (sequence & 1) == 0 || file().header().complete.load() == state_.epoch + 1;
    const bool needed = !before && wait.IsNeeded(sequence);
    if (!before && !needed && impl.control->IsSealed(sequence) && impl.probe->Held()) {
      sealed_ = sequence;
    }
    if (before || sealed_ != 0) {
      waited_ns_ += NowNs() - began;
      TSPS_RETURN_IF_ERROR(impl.CheckRead(state_, sequence / 2));
      return true;
    }
    if (!needed && !impl.probe->Held()) {
      not_announced_ =
          "a killed writer left an unfinished mutation, and no writer has recovered it yet";
      return false;
    }
    if (NowNs() > deadline) {
      return Error(Code::kUnavailable, "the writer of ", group_.path(), " (pid ",
                   impl.control->live().writer_pid.load(), ") has been in one mutation for ",
                   options_.timeout_s, " s, so a scan cannot begin");
    }
    wait.Wait(sequence);
  }
}

bool Scan::Fits() const {
  // The writer may have published mutations between the announcement and the look at the state.
  const uint64_t seen = file().header().seen.load();
  if (seen != 0 && seen != state_.epoch + 1) return false;
  for (const ScanFile::Wanted& table : file().tables()) {
    if (table.place >= state_.tables.size()) return false;
    const TableState& now = state_.tables[table.place];
    if (IsVacant(now) || now.removed != table.removed || now.planes != table.planes) return false;
    if (now.rows > table.rows) return false;
  }
  return true;
}

bool Scan::MapTables() {
  const std::shared_ptr<const MappedTables::List> mapped = group_.impl_->tables.list();
  for (const int table : tables_) {
    const size_t place = PlaceOf(table);
    if (place >= mapped->size() || !(*mapped)[place].Is(RemovedBefore(table))) return false;
    std::shared_ptr<TableFiles> files = (*mapped)[place].files;
    const TableState& state = state_.tables[place];
    if (!files->CheckFiles(state).ok()) return false;
    const PlaneList* const list = files->Planes(state);
    parts_.push_back({table, std::move(files), list, WantedPlanes(*list, options_)});
    if (announced()) file().end(parts_.size() - 1).store(state.rows, std::memory_order_relaxed);
  }
  return true;
}

const TableState& Scan::StateOf(int table) const { return state_.tables[PlaceOf(table)]; }

const Scan::Part& Scan::PartOf(int table) const {
  return *std::find_if(parts_.begin(), parts_.end(),
                       [&](const Part& part) { return part.table == table; });
}
Scan::Part& Scan::PartOf(int table) {
  return const_cast<Part&>(static_cast<const Scan*>(this)->PartOf(table));
}

Status Scan::Check() const { return announced() ? announcement_->Check() : Status(); }

Status Scan::TakeImages() {
  const uint64_t end = file().header().end.load(std::memory_order_acquire);
  if (end == taken_) return Status();
  const std::string path = announcement_->images_path();
  if (images_ == nullptr) {
    TSPS_ASSIGN_OR_RETURN(images_, MappedFile::Open(path, 0, file().limit()));
  }
  if (end > images_->size() && end > images_->RefreshSize()) {
    return Damaged(path, "records of ", end, " bytes, in ", images_->size());
  }
  while (taken_ < end) {
    auto* const record = reinterpret_cast<ScanRecord*>(images_->data() + taken_);
    const uint64_t room = end - taken_;
    const bool sane = room >= sizeof(ScanRecord) && record->table < parts_.size() &&
                      record->n <= kMaxRowNumber && record->bytes <= room &&
                      record->bytes == ScanRecordBytes(record->n, record->row_bytes);
    if (!sane) return Damaged(path, "the record at ", taken_);
    Part& part = parts_[record->table];
    if (record->kind == kScanMoves && record->row_bytes == kScanMoveBytes) {
      if (part.records != nullptr) {
        part.records->Left(reinterpret_cast<const RecordMove*>(ScanImages(record)), record->n);
      }
      taken_ += record->bytes;
      continue;
    }
    if (record->row_bytes != RowBytesOf(*part.list, part.wanted)) {
      return Damaged(path, "images of ", record->row_bytes, " bytes at ", taken_);
    }
    const uint32_t* const rows = ScanRows(record);
    const char* image = ScanImages(record);
    for (uint64_t i = 0; i < record->n; ++i, image += record->row_bytes) {
      if (rows[i] < part.next || rows[i] >= StateOf(part.table).rows)
        continue;  // already read, or new
      part.images.emplace(rows[i], image);
      if (part.keys && IsLive(part, image)) part.by_key.emplace(KeyOf(part, image), rows[i]);
    }
    taken_ += record->bytes;
  }
  return Status();
}

int64_t Scan::KeyOf(const Part& part, const char* image) {
  int64_t key;
  std::memcpy(&key, image + OffsetOf(part, part.list->trained()), sizeof(key));
  return key;
}

bool Scan::IsLive(const Part& part, const char* image) {
  uint32_t changed;
  std::memcpy(&changed, image + OffsetOf(part, part.list->trained() + 1), sizeof(changed));
  return changed != kFreeRow;
}

}  // namespace tsps
