#include <algorithm>

#include "core/base/fault_point.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/index_view.h"
#include "core/group/overlay.h"
#include "core/group/probe.h"
#include "core/group/table_number.h"
#include "core/table/index.h"

namespace tsps {
namespace {

// ProbeRows for a state with an overlay, which is rare and slow.
int64_t ProbeRowsWithOverlay(const IndexView& index, const TableState& state, const int64_t* keys,
                             size_t n, uint32_t* rows) {
  int64_t astray = -1;
  for (size_t i = 0; i < n; ++i) {
    rows[i] = kAbsentRow;
    const uint64_t hash = HashKey(keys[i], state.index_seed);
    const uint32_t number = index.SegmentOf(hash);
    const uint32_t at =
        number < state.segments ? index.Find(number, keys[i], hash) : kSegmentEntries;
    const uint32_t row_plus_one = at < kSegmentEntries ? index.RowPlusOne(number, at) : 0;
    if (number >= state.segments || row_plus_one > state.rows) astray = static_cast<int64_t>(i);
    if (row_plus_one != 0 && row_plus_one <= state.rows) rows[i] = row_plus_one - 1;
  }
  return astray;
}

}  // namespace

uint64_t ReadView::step() const { return state_.step; }
uint64_t ReadView::epoch() const { return state_.epoch; }

std::vector<int> ReadView::tables() const {
  std::vector<int> tables;
  for (size_t place = 0; place < state_.tables.size(); ++place) {
    const TableState& state = state_.tables[place];
    if (!IsVacant(state)) tables.push_back(TableNumber(place, state.removed));
  }
  return tables;
}

const TableState& ReadView::StateOf(int table) const { return state_.tables[PlaceOf(table)]; }
TableFiles& ReadView::Files(int table) const { return *mapped_[PlaceOf(table)].files; }

bool ReadView::Has(int table) const {
  return table >= 0 && PlaceOf(table) < state_.tables.size() && !IsVacant(StateOf(table)) &&
         StateOf(table).removed == RemovedBefore(table);
}

bool ReadView::Listed(int table) const {
  const size_t place = PlaceOf(table);
  const bool exists = Has(table);
  if (exists && place < mapped_.size() && mapped_[place].Is(RemovedBefore(table))) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  if (exists) {
    missing_.push_back(place);
  } else {
    const bool known = table >= 0 && place < state_.tables.size();
    unmapped_ = Error(
        Code::kNotFound, "group ", group_.path(), " has no table ", table,
        known && StateOf(table).removed > RemovedBefore(table) ? ". It has been removed" : "");
  }
  return false;
}

bool ReadView::Mapped(int table) const {
  if (!Listed(table)) return false;
  TableFiles& files = Files(table);
  Status status = files.CheckFiles(StateOf(table));
  if (status.ok() && overlay_ != nullptr) {
    status = overlay_->CheckPlanes(static_cast<int>(PlaceOf(table)), *files.Planes(StateOf(table)));
  }
  if (status.ok()) return true;
  Fail(std::move(status));
  return false;
}

void ReadView::Fail(Status status) const {
  std::lock_guard<std::mutex> lock(mutex_);
  unmapped_ = std::move(status);
}

void ReadView::FindRows(int table, const int64_t* keys, size_t n, uint32_t* rows) const {
  if (Mapped(table)) {
    Probe(table, keys, n, rows, nullptr);
  } else {
    std::fill_n(rows, n, kAbsentRow);
  }
}

void ReadView::Probe(int table, const int64_t* keys, size_t n, uint32_t* rows,
                     const tsps::Plane* fetch) const {
  const TableFiles& files = Files(table);
  const TableState& state = StateOf(table);
  const int64_t astray =
      overlay_ == nullptr ? ProbeRows(files, state, keys, n, rows, fetch)
                          : ProbeRowsWithOverlay(
                                IndexView(files, state, overlay_, static_cast<int>(PlaceOf(table))),
                                state, keys, n, rows);
  if (astray >= 0 && !TSPS_FAULT_OFF("seqlock")) Fail(Astray(files, keys[astray]));
}

void ReadView::Find(int table, const int64_t* keys, size_t n, const char** rows,
                    uint32_t* numbers) const {
  constexpr size_t kChunk = 256;
  // Otherwise the first rows would leave the caches before they are read.
  constexpr size_t kFetchedBytes = 128u << 10;
  uint32_t scratch[kChunk];
  const PlaneList* const list = Planes(table);
  if (list == nullptr) {
    std::fill_n(rows, n, nullptr);
    if (numbers != nullptr) std::fill_n(numbers, n, kAbsentRow);
    return;
  }
  const tsps::Plane& embedding = list->embedding();
  const tsps::Plane* const fetch = n * embedding.row_bytes <= kFetchedBytes ? &embedding : nullptr;
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t m = std::min(kChunk, n - begin);
    uint32_t* const row_numbers = numbers == nullptr ? scratch : numbers + begin;
    Probe(table, keys + begin, m, row_numbers, fetch);
    for (size_t i = 0; i < m; ++i) {
      const uint32_t row = row_numbers[i];
      rows[begin + i] = row == kAbsentRow     ? nullptr
                        : overlay_ == nullptr ? embedding.row(row)
                                              : Plane(table, 0, row);
    }
  }
}

const char* ReadView::Plane(int table, size_t plane, uint32_t row) const {
  TableFiles& files = Files(table);
  const PlaneList* const list = files.Planes(StateOf(table));
  if (list == nullptr || plane >= list->planes.size()) return nullptr;
  if (overlay_ != nullptr) {
    const auto place = static_cast<int>(PlaceOf(table));
    if (const char* image = overlay_->RowImage(place, plane, row, *list)) return image;
  }
  const tsps::Plane& stored = list->planes[plane];
  const size_t end = (static_cast<size_t>(row) + 1) * stored.row_bytes;
  if (end > stored.file->size() && end > stored.file->RefreshSize()) return nullptr;
  return stored.row(row);
}

const char* ReadView::Row(int table, uint32_t row) const {
  if (overlay_ != nullptr) return Plane(table, 0, row);
  const PlaneList* const list = Files(table).Planes(StateOf(table));
  return list == nullptr ? nullptr : list->embedding().row(row);
}

const float* ReadView::Slot(int table, int slot, uint32_t row) const {
  const PlaneList* const list = Files(table).Planes(StateOf(table));
  if (list == nullptr || static_cast<size_t>(slot) >= list->slots()) return nullptr;
  return reinterpret_cast<const float*>(Plane(table, 1 + static_cast<size_t>(slot), row));
}

const char* ReadView::Metadata(int table, size_t k, uint32_t row) const {
  const PlaneList* const list = Files(table).Planes(StateOf(table));
  return list == nullptr ? nullptr : Plane(table, list->metadata(k), row);
}

Status ReadView::ReadRecords(int table, const int64_t* keys, size_t n,
                             const std::function<void(size_t i, const char* payload)>& visit,
                             std::vector<uint32_t>* places) const {
  if (places != nullptr) places->clear();
  if (n == 0 || !Has(table) || (StateOf(table).flags & kTableAbsentElsewhere) == 0) return Status();
  if (!Mapped(table)) return Status();  // Read maps it, or fails
  TSPS_ASSIGN_OR_RETURN(RecordStore* const records, Files(table).Records(StateOf(table)));
  std::vector<uint32_t> scratch;
  if (places == nullptr) places = &scratch;
  places->resize(n);
  return records->ReadCommitted(StateOf(table).moves, keys, n, /*urgent=*/true, places->data(),
                                visit);
}

const PlaneList* ReadView::Planes(int table) const {
  return Mapped(table) ? Files(table).Planes(StateOf(table)) : nullptr;
}

TableStats ReadView::Stats(int table) const {
  TableStats stats;
  if (!Listed(table)) return stats;
  const TableState& state = StateOf(table);
  stats.rows = state.live;
  stats.row_capacity = state.rows;
  stats.segments = state.segments;
  stats.trained_by = {state.optimizer_id, state.optimizer_steps};
  stats.index_seed = state.index_seed;
  stats.version = state.version;
  stats.evicted_unused = state.evicted_unused;
  stats.evicted_excess = state.evicted_excess;
  stats.admitted = state.admitted;
  stats.dropped = state.dropped;
  stats.bytes = Files(table).Bytes(state);
  const PlaneList* const list = Files(table).Planes(state);
  const auto records = Files(table).Records(state);
  Result<bool> on_disk = false;
  if (records.ok() && *records != nullptr) {
    on_disk = (*records)->RowsOf(state.moves, &stats.rows_on_disk);
  }
  if (!records.ok() || !on_disk.ok()) {
    Fail(records.ok() ? on_disk.status() : records.status());
  } else if (*on_disk) {
    stats.rows += stats.rows_on_disk;
    stats.bytes += (*records)->memory_bytes();
    stats.bytes_on_disk = (*records)->log_bytes();
    stats.live_bytes_on_disk = stats.rows_on_disk * (*records)->record_bytes();
    stats.rows_to_stage = (*records)->cached_records();
  }
  if (list != nullptr) {
    stats.optimizer = list->optimizer;
    stats.metadata = MetadataOf(*list);
  }
  return stats;
}

}  // namespace tsps
