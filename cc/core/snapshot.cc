#include <algorithm>

#include "core/group.h"
#include "core/group_impl.h"
#include "core/index.h"
#include "core/overlay.h"
#include "core/table_number.h"

namespace tsps {
namespace {

// Keys in flight at once: enough misses to keep the memory system busy, few enough to stay in L1.
constexpr size_t kBatch = 16;

}  // namespace

void ProbeRows(const TableFiles& files, uint32_t depth, const int64_t* keys, size_t n,
               uint32_t* rows) {
  depth = std::min(depth, 31u);
  const size_t row_bytes = files.row_bytes();
  uint64_t hashes[kBatch];
  const Segment* segments[kBatch];
  for (size_t begin = 0; begin < n; begin += kBatch) {
    const size_t m = std::min(kBatch, n - begin);
    for (size_t i = 0; i < m; ++i) {
      hashes[i] = HashKey(keys[begin + i]);
      segments[i] = files.SegmentOf(hashes[i], depth);
      if (segments[i] != nullptr) __builtin_prefetch(&segments[i]->entries[HomeEntry(hashes[i])]);
    }
    for (size_t i = 0; i < m; ++i) {
      uint32_t row = kAbsentRow;
      if (segments[i] != nullptr) {
        if (const Entry* entry = FindInSegment(*segments[i], keys[begin + i], hashes[i])) {
          row = LoadRelaxed(entry->row_plus_one) - 1;
          if (row >= kMaxRowNumber || !files.RowInFile(row)) row = kAbsentRow;
        }
      }
      if (row != kAbsentRow) {
        const char* address = reinterpret_cast<const char*>(files.row(row));
        for (size_t offset = 0; offset < std::min<size_t>(row_bytes, 256); offset += 64) {
          __builtin_prefetch(address + offset);
        }
      }
      rows[begin + i] = row;
    }
  }
}

namespace {

// The same through an overlay: rare and slow.
uint32_t ProbeRowBehind(const TableFiles& files, const Overlay& overlay, int table, uint32_t depth,
                        int64_t key) {
  if (overlay.Inserted(table, key)) return kAbsentRow;
  const uint64_t hash = HashKey(key);
  const Segment* segment = files.SegmentOf(hash, std::min(depth, 31u));
  if (segment == nullptr) return kAbsentRow;
  const auto number = static_cast<uint32_t>(segment - files.segment(0));
  if (const Segment* image = overlay.SegmentImage(table, number)) segment = image;
  uint32_t at = HomeEntry(hash);
  for (uint32_t i = 0; i < kSegmentEntries; ++i) {
    const Entry& entry = segment->entries[at];
    if (entry.row_plus_one == 0) return kAbsentRow;
    if (entry.key == key) {
      const uint32_t erased = overlay.ErasedRow(table, number, at);
      if (erased != 0 && files.RowInFile(erased - 1)) return erased - 1;
      const uint32_t row = LoadRelaxed(entry.row_plus_one) - 1;
      if (row < kMaxRowNumber && files.RowInFile(row)) return row;
    }
    if (++at == kSegmentEntries) at = 0;
  }
  return kAbsentRow;
}

}  // namespace

uint64_t Snapshot::step() const { return state_.step; }

std::vector<int> Snapshot::tables() const {
  std::vector<int> tables;
  for (size_t place = 0; place < state_.tables.size(); ++place) {
    const TableState& state = state_.tables[place];
    if (!IsVacant(state)) tables.push_back(TableNumber(place, state.removed));
  }
  return tables;
}

const TableState& Snapshot::StateOf(int table) const { return state_.tables[PlaceOf(table)]; }
TableFiles& Snapshot::Files(int table) const { return *mapped_[PlaceOf(table)].files; }

bool Snapshot::Has(int table) const {
  return table >= 0 && PlaceOf(table) < state_.tables.size() && !IsVacant(StateOf(table)) &&
         StateOf(table).removed == RemovedBefore(table);
}

bool Snapshot::Listed(int table) const {
  const size_t place = PlaceOf(table);
  const bool there = Has(table);
  if (there && place < mapped_.size() && mapped_[place].Is(RemovedBefore(table))) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  if (there) {
    missing_.push_back(place);
  } else {
    const bool known = table >= 0 && place < state_.tables.size();
    unmapped_ = Error(
        Code::kNotFound, "there is no table ", table, " in ", group_.path(),
        known && StateOf(table).removed > RemovedBefore(table) ? ": it has been removed" : "");
  }
  return false;
}

bool Snapshot::Mapped(int table) const {
  if (!Listed(table)) return false;
  Status status = Files(table).CheckFiles(StateOf(table));
  if (status.ok()) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  unmapped_ = std::move(status);
  return false;
}

void Snapshot::FindRows(int table, const int64_t* keys, size_t n, uint32_t* rows) const {
  if (!Mapped(table)) {
    std::fill_n(rows, n, kAbsentRow);
    return;
  }
  const TableFiles& files = Files(table);
  const uint32_t depth = StateOf(table).depth;
  if (overlay_ == nullptr) {
    ProbeRows(files, depth, keys, n, rows);
    return;
  }
  const auto place = static_cast<int>(PlaceOf(table));
  for (size_t i = 0; i < n; ++i) rows[i] = ProbeRowBehind(files, *overlay_, place, depth, keys[i]);
}

void Snapshot::Find(int table, const int64_t* keys, size_t n, const float** rows) const {
  constexpr size_t kChunk = 256;
  uint32_t numbers[kChunk];
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t m = std::min(kChunk, n - begin);
    FindRows(table, keys + begin, m, numbers);
    for (size_t i = 0; i < m; ++i) {
      rows[begin + i] = numbers[i] == kAbsentRow ? nullptr : Row(table, numbers[i]);
    }
  }
}

const float* Snapshot::Row(int table, uint32_t row) const {
  const TableFiles& files = Files(table);
  if (overlay_ != nullptr) {
    const auto place = static_cast<int>(PlaceOf(table));
    if (const float* image = overlay_->RowImage(place, -1, row, files.dim())) return image;
  }
  return files.row(row);
}

const float* Snapshot::Slot(int table, int slot, uint32_t row) const {
  TableFiles* files = &Files(table);
  if (overlay_ != nullptr) {
    const auto place = static_cast<int>(PlaceOf(table));
    if (const float* image = overlay_->RowImage(place, slot, row, files->dim())) return image;
  }
  const SlotFiles* slots = files->Slots(StateOf(table));
  if (slots == nullptr || static_cast<size_t>(slot) >= slots->files.size()) return nullptr;
  MappedFile& file = *slots->files[static_cast<size_t>(slot)];
  const size_t end = (static_cast<size_t>(row) + 1) * files->row_bytes();
  if (end > file.size() && end > file.RefreshSize()) return nullptr;
  return files->slot_row(*slots, slot, row);
}

void Snapshot::ForEach(int table,
                       const std::function<void(int64_t key, uint32_t row)>& visit) const {
  if (!Mapped(table)) return;
  const TableFiles& files = Files(table);
  const TableState& state = StateOf(table);
  const auto place = static_cast<int>(PlaceOf(table));
  for (uint32_t number = 0; number < state.segments; ++number) {
    const Segment* segment = files.segment(number);
    if (overlay_ != nullptr) {
      if (const Segment* image = overlay_->SegmentImage(place, number)) segment = image;
    }
    for (uint32_t at = 0; at < kSegmentEntries; ++at) {
      const int64_t key = LoadRelaxed(segment->entries[at].key);
      uint32_t row_plus_one = LoadRelaxed(segment->entries[at].row_plus_one);
      if (overlay_ != nullptr) {
        if (overlay_->Inserted(place, key)) continue;
        if (const uint32_t erased = overlay_->ErasedRow(place, number, at)) row_plus_one = erased;
      }
      if (row_plus_one == 0 || row_plus_one == kTombstone) continue;
      if (row_plus_one > kMaxRowNumber || !files.RowInFile(row_plus_one - 1)) continue;
      visit(key, row_plus_one - 1);
    }
  }
}

TableStats Snapshot::Stats(int table) const {
  TableStats stats;
  if (!Listed(table)) return stats;
  const TableState& state = StateOf(table);
  stats.rows = state.live;
  stats.row_capacity = state.rows;
  stats.segments = state.segments;
  stats.bytes = Files(table).Bytes(state);
  stats.optimizer.kind = static_cast<OptimizerKind>(state.optimizer);
  std::copy(std::begin(state.slot_init), std::end(state.slot_init),
            std::begin(stats.optimizer.slot_init));
  return stats;
}

}  // namespace tsps
