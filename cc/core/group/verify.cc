// Checks a table's index, row numbers and free rows against each other, while a writer may be
// active. The index is checked in pieces, each as of one committed state, and then all rows as of
// one state.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/racy_copy.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/index_view.h"
#include "core/group/scan.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

constexpr uint32_t kSegments = 16;  // in a piece
constexpr size_t kRows = 4096;      // in a piece

}  // namespace

// The checks of one table in one view.
class TableCheck {
 public:
  // Returns whether the view has the table. If not, Read() maps it and calls again, or fails.
  static bool Has(const ReadView& view, int table) { return view.Mapped(table); }
  TableCheck(const ReadView& view, int table)
      : files_(view.Files(table)),
        state_(view.StateOf(table)),
        changes_(view.state_.changes),
        unfinished_(view.overlay_ != nullptr),
        index_(files_, state_, view.overlay_, static_cast<int>(PlaceOf(table))),
        list_(files_.Planes(state_)) {}

  const TableState& state() const { return state_; }
  Status CheckState() const { return files_.CheckState(state_); }

  // Checks that every segment has its own aligned range of directory entries, as long as its depth
  // says.
  Status CheckDirectory() const {
    std::vector<bool> seen(state_.segments);
    uint32_t segments = 0;
    for (size_t i = 0, width = 0; i < index_.directory_size(); i += width, ++segments) {
      const uint32_t number = index_.DirectoryEntry(i);
      if (number >= state_.segments) return Damaged("directory entry ", i, " names ", number);
      const uint32_t local_depth = LoadRelaxed(index_.segment(number).local_depth);
      if (local_depth > state_.depth || seen[number]) {
        return Damaged("segment ", number, " is of depth ", local_depth,
                       seen[number] ? ", and named twice" : "");
      }
      seen[number] = true;
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

  // Checks keys and the rows that they lead to. Each row must have its key, so no two keys have the
  // same row.
  Status CheckEntries(uint32_t number) const {
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
      const uint64_t hash = HashKey(key, state_.index_seed);
      if (index_.SegmentOf(hash) != number) {
        return Damaged("key ", key, " is in segment ", number, ", not where its hash leads");
      }
      const uint32_t position = index_.Find(number, key, hash);
      if (position != at) {
        return Damaged(
            "key ", key,
            position < kSegmentEntries ? " is there twice" : " is there and cannot be found");
      }
      TSPS_RETURN_IF_ERROR(CheckRow(row_plus_one - 1, key));
    }
    const uint32_t counted = LoadRelaxed(index_.segment(number).used);
    if (counted >= used && counted <= used + inserted) return Status();
    return Damaged("segment ", number, " counts ", counted, " entries, has ", used);
  }

  // Returns the stack of free rows; no value while a mutation is unfinished, because it may have
  // overwritten a part of them.
  std::optional<std::vector<uint32_t>> FreeRows() const {
    if (unfinished_) return std::nullopt;
    std::vector<uint32_t> rows(state_.free_rows);
    RacyRead(rows.data(), files_.free_stack(), rows.size() * sizeof(uint32_t));
    return rows;
  }

  // Checks that the rows in a piece of the stack are free.
  Status CheckFreeMarks(uint64_t begin, uint64_t end) const {
    for (uint64_t i = begin; i < std::min(end, state_.free_rows) && !unfinished_; ++i) {
      const uint32_t row = LoadRelaxed(files_.free_stack()[i]);
      if (row >= state_.rows) return Damaged("free row ", row, " is out of range");
      if (LoadRelaxed(list_->changed_generations()[row]) == kFreeRow) continue;
      return Damaged("free row ", row, " is in use");
    }
    return Status();
  }

  // Checks that erased keys are in the order of their generations, from the last one backwards.
  // Those before the first one that was dropped do not count (erased_log.h).
  Status CheckErased() const {
    uint32_t next = changes_;
    for (uint64_t i = state_.erased; i-- > 0;) {
      const uint32_t generation = LoadRelaxed(files_.erased_keys()[i].generation);
      if (generation < state_.complete_since) break;
      if (generation > next) {
        return Damaged("erased key ", i, " is of change generation ", generation, ", before ", next,
                       " of ", changes_);
      }
      next = generation;
    }
    return Status();
  }

 private:
  template <typename... Args>
  Status Damaged(const Args&... damage) const {
    return tsps::Damaged("table " + files_.folder(), damage...);
  }

  Status CheckRow(uint32_t row, int64_t key) const {
    if (row >= state_.rows) return Damaged("key ", key, " has row ", row, " of ", state_.rows);
    const int64_t key_of_row = LoadRelaxed(list_->keys()[row]);
    if (key_of_row == key) return Status();
    return Damaged("row ", row, " is that of key ", key, " in the index and of key ", key_of_row,
                   " in the plane of keys");
  }

  TableFiles& files_;
  const TableState& state_;
  const uint32_t changes_;
  const bool unfinished_;
  const IndexView index_;
  const PlaneList* const list_;
};

namespace {

// Checks a copy of a table's stack of free rows: each row must be in it once.
Status CheckFreeRows(const std::vector<uint32_t>& free_rows, const TableState& state,
                     const std::string& folder) {
  std::vector<bool> seen(state.rows);
  for (const uint32_t row : free_rows) {
    if (row >= state.rows || seen[row]) {
      return Damaged(folder, "free row ", row, " is out of range, or free twice");
    }
    seen[row] = true;
  }
  if (state.live + state.free_rows == state.rows) return Status();
  return Damaged(folder, state.live, " keys and ", state.free_rows, " free rows of ", state.rows);
}

// Checks that every row that is not free has a key, and that the key leads to the row.
Status CheckRows(Scan& scan, int table, const std::string& folder) {
  const PlaneList& list = scan.Planes(table);
  const TableState& state = scan.StateOf(table);
  SerialExecutor executor;
  std::vector<uint32_t> rows(kRows), changed(kRows), found_rows(kRows);
  std::vector<int64_t> keys(kRows);
  char* planes[kMaxPlanes] = {};
  planes[list.trained()] = reinterpret_cast<char*>(keys.data());
  planes[list.trained() + 1] = reinterpret_cast<char*>(changed.data());
  uint64_t live = 0;
  for (uint64_t begin = 0; begin < state.rows; begin += kRows) {
    const size_t m = std::min<uint64_t>(kRows, state.rows - begin);
    for (size_t i = 0; i < m; ++i) rows[i] = static_cast<uint32_t>(begin + i);
    TSPS_RETURN_IF_ERROR(scan.Copy(table, rows.data(), m, planes, executor));
    TSPS_RETURN_IF_ERROR(scan.Find(table, keys.data(), m, found_rows.data(), executor));
    for (size_t i = 0; i < m; ++i) {
      if (changed[i] == kFreeRow) continue;
      ++live;
      if (found_rows[i] != rows[i]) {
        return Damaged(folder, "row ", rows[i], " is that of key ", keys[i], ", which ",
                       found_rows[i] == kAbsentRow ? "cannot be found" : "has another row");
      }
      if (changed[i] <= scan.changes()) continue;
      return Damaged(folder, "row ", rows[i], " was written in change generation ", changed[i],
                     " of ", scan.changes());
    }
  }
  if (live == state.live) return Status();
  return Damaged(folder, live, " keys, ", state.live, " counted");
}

// Checks that every row on disk can be read and is not in memory, too.
Status CheckRecords(Scan& scan, int table, const std::string& folder) {
  SerialExecutor executor;
  std::vector<uint32_t> changed(kRows), found_rows(kRows);
  std::vector<int64_t> keys(kRows);
  char* planes[kMaxPlanes] = {};
  planes[scan.Planes(table).trained() + 1] = reinterpret_cast<char*>(changed.data());
  while (true) {
    TSPS_ASSIGN_OR_RETURN(const size_t n, scan.NextOnDisk(table, kRows, keys.data(), planes));
    if (n == 0) return Status();
    TSPS_RETURN_IF_ERROR(scan.Find(table, keys.data(), n, found_rows.data(), executor));
    for (size_t i = 0; i < n; ++i) {
      if (found_rows[i] != kAbsentRow) {
        return Damaged(folder, "key ", keys[i], " has a row in memory and one on disk");
      }
      if (changed[i] <= scan.changes()) continue;
      return Damaged(folder, "the row of key ", keys[i],
                     " on disk was written in change generation ", changed[i], " of ",
                     scan.changes());
    }
  }
}

}  // namespace

Status Group::Verify(int table) {
  TSPS_ASSIGN_OR_RETURN(const auto config, Config(table));
  const std::string folder = "table " + path_ + "/" + config->name;
  // In pieces: if the writer is fast, a long read never sees one state.
  const auto read = [&](const std::function<Status(const TableCheck&)>& check) {
    return Read([&](const ReadView& view) -> Status {
      if (!TableCheck::Has(view, table)) return Status();
      const TableCheck table_check(view, table);
      TSPS_RETURN_IF_ERROR(table_check.CheckState());
      return check(table_check);
    });
  };
  TableState state = {};
  std::optional<std::vector<uint32_t>> free_rows;
  TSPS_RETURN_IF_ERROR(read([&](const TableCheck& check) -> Status {
    state = check.state();
    free_rows = check.FreeRows();
    TSPS_RETURN_IF_ERROR(check.CheckDirectory());
    return check.CheckErased();
  }));
  if (free_rows.has_value()) TSPS_RETURN_IF_ERROR(CheckFreeRows(*free_rows, state, folder));
  for (uint64_t begin = 0; begin < state.free_rows; begin += kRows) {
    TSPS_RETURN_IF_ERROR(read([&](const TableCheck& check) {
      state = check.state();
      return check.CheckFreeMarks(begin, begin + kRows);
    }));
  }
  for (uint32_t begin = 0; begin < state.segments; begin += kSegments) {
    TSPS_RETURN_IF_ERROR(read([&](const TableCheck& check) -> Status {
      state = check.state();
      for (uint32_t number = begin; number < std::min(begin + kSegments, state.segments);
           ++number) {
        TSPS_RETURN_IF_ERROR(check.CheckEntries(number));
      }
      return Status();
    }));
  }
  Scan::Options options;
  options.embedding = options.slots_and_metadata = false;
  TSPS_ASSIGN_OR_RETURN(const auto scan, Scan::Begin(*this, {table}, options));
  TSPS_RETURN_IF_ERROR(CheckRows(*scan, table, folder));
  return CheckRecords(*scan, table, folder);
}

Status GroupWriter::Verify() {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  for (size_t place = 0; place < impl_->state.tables.size(); ++place) {
    const TableState& state = impl_->state.tables[place];
    if (IsVacant(state)) continue;
    TSPS_RETURN_IF_ERROR(group_.Verify(TableNumber(place, state.removed)));
  }
  return Status();
}

}  // namespace tsps
