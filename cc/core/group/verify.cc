// Checks a table's index, row numbers and returned rows against each other.
#include <string>
#include <vector>

#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/index_view.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

class TableCheck {
 public:
  TableCheck(TableFiles& files, const TableState& state, const Overlay* overlay, int place,
             uint32_t changes)
      : files_(files),
        state_(state),
        changes_(changes),
        index_(files, state, overlay, place),
        taken_(state.rows) {
    if (const PlaneList* const list = files.Planes(state)) {
      keys_ = reinterpret_cast<const int64_t*>(list->key().file->data());
      changed_ = reinterpret_cast<const uint32_t*>(list->changed().file->data());
    }
  }

  Status Run() {
    TSPS_RETURN_IF_ERROR(CheckDirectory());
    for (uint32_t number = 0; number < state_.segments; ++number) {
      TSPS_RETURN_IF_ERROR(CheckEntries(number));
    }
    if (live_ != state_.live) return Damaged(live_, " keys, ", state_.live, " counted");
    TSPS_RETURN_IF_ERROR(CheckErased());
    return CheckFreeRows();
  }

 private:
  template <typename... Args>
  Status Damaged(const Args&... what) const {
    return Error(Code::kDataLoss, "table ", files_.folder(), " is damaged: ", what...);
  }

  // Every segment has its own aligned range of entries, and its depth says how long that is.
  Status CheckDirectory() const {
    std::vector<bool> met(state_.segments);
    uint32_t segments = 0;
    for (size_t i = 0, width = 0; i < index_.directory_size(); i += width, ++segments) {
      const uint32_t number = index_.DirectoryEntry(i);
      if (number >= state_.segments) return Damaged("directory entry ", i, " names ", number);
      const uint32_t local_depth = LoadRelaxed(index_.segment(number).local_depth);
      if (local_depth > state_.depth || met[number]) {
        return Damaged("segment ", number, " is of depth ", local_depth,
                       met[number] ? ", and named twice" : "");
      }
      met[number] = true;
      width = size_t{1} << (state_.depth - local_depth);
      for (size_t k = i; k < i + width; ++k) {
        if (i % width == 0 && index_.DirectoryEntry(k) == number) continue;
        return Damaged("segment ", number, " of depth ", local_depth, " does not have entry ", k,
                       " of the directory");
      }
    }
    return segments == state_.segments ? Status()
                                       : Damaged(segments, " segments of ", state_.segments);
  }

  Status CheckEntries(uint32_t number) {
    uint32_t used = 0;
    uint32_t inserted = 0;  // by an unfinished mutation, which may or may not have counted them
    for (uint32_t at = 0; at < kSegmentEntries; ++at) {
      const uint32_t row_plus_one = index_.RowPlusOne(number, at);
      if (row_plus_one == 0) {
        inserted += LoadRelaxed(index_.segment(number).entries[at].row_plus_one) != 0;
        continue;
      }
      ++used;
      if (row_plus_one == kTombstone) continue;
      const int64_t key = index_.Key(number, at);
      const uint64_t hash = files_.Hash(key);
      if (index_.SegmentOf(hash) != number) {
        return Damaged("key ", key, " is in segment ", number, ", not where its hash leads");
      }
      const uint32_t found = index_.Find(number, key, hash);
      if (found != at) {
        return Damaged(
            "key ", key,
            found < kSegmentEntries ? " is there twice" : " is there and cannot be found");
      }
      const uint32_t row = row_plus_one - 1;
      if (row >= state_.rows) return Damaged("key ", key, " has row ", row, " of ", state_.rows);
      if (taken_[row]) return Damaged("row ", row, " has two keys, one is ", key);
      taken_[row] = true;
      ++live_;
      TSPS_RETURN_IF_ERROR(CheckPlanes(row, key));
    }
    const uint32_t counted = LoadRelaxed(index_.segment(number).used);
    if (counted >= used && counted <= used + inserted) return Status();
    return Damaged("segment ", number, " counts ", counted, " entries, has ", used);
  }

  Status CheckPlanes(uint32_t row, int64_t key) const {
    if (keys_ == nullptr) return Status();
    const int64_t of_row = LoadRelaxed(keys_[row]);
    if (of_row != key) {
      return Damaged("row ", row, " is that of key ", key, " in the index and of key ", of_row,
                     " in the plane of keys");
    }
    const uint32_t changed = LoadRelaxed(changed_[row]);
    if (changed <= changes_) return Status();
    return Damaged("row ", row, " was written in change generation ", changed, " of ", changes_);
  }

  // After the keys' rows.
  Status CheckFreeRows() {
    for (uint64_t i = 0; i < state_.free_rows; ++i) {
      const uint32_t row = LoadRelaxed(files_.free_stack()[i]);
      if (row >= state_.rows || taken_[row]) {
        return Damaged("free row ", row, " is in use or out of range");
      }
      taken_[row] = true;
    }
    if (live_ + state_.free_rows == state_.rows) return Status();
    return Damaged(state_.rows - live_ - state_.free_rows, " rows are neither free nor in use");
  }

  // In the order in which they were erased.
  Status CheckErased() const {
    uint32_t last = 0;
    for (uint64_t i = 0; i < state_.erased; ++i) {
      const uint32_t generation = LoadRelaxed(files_.erased_keys()[i].generation);
      if (generation < last || generation > changes_) {
        return Damaged("erased key ", i, " is of change generation ", generation, ", after ", last,
                       " of ", changes_);
      }
      last = generation;
    }
    return Status();
  }

  const TableFiles& files_;
  const TableState& state_;
  const uint32_t changes_;
  const IndexView index_;
  std::vector<bool> taken_;  // by row
  const uint32_t* changed_ = nullptr;
  const int64_t* keys_ = nullptr;  // by row
  uint64_t live_ = 0;
};

}  // namespace

Status ReadView::Verify(int table) const {
  if (!Mapped(table)) return Status();  // Read() fails, or maps it
  TSPS_RETURN_IF_ERROR(Files(table).CheckState(StateOf(table)));
  return TableCheck(Files(table), StateOf(table), overlay_, static_cast<int>(PlaceOf(table)),
                    state_.changes)
      .Run();
}

Status GroupWriter::Verify() {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  for (size_t place = 0; place < impl_->state.tables.size(); ++place) {
    const TableState& state = impl_->state.tables[place];
    if (IsVacant(state)) continue;
    TableFiles& files = *group_.impl_->tables.files(place);
    TSPS_RETURN_IF_ERROR(files.CheckState(state));
    TSPS_RETURN_IF_ERROR(
        TableCheck(files, state, nullptr, static_cast<int>(place), impl_->state.changes).Run());
  }
  return Status();
}

}  // namespace tsps
