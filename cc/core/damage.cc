#include "core/damage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/fault_point.h"
#include "core/index.h"
#include "core/row_optimizer.h"
#include "core/table_number.h"

namespace tsps {
namespace {

template <typename... Args>
Status Damaged(const std::string& what, const Args&... args) {
  return Error(Code::kDataLoss, what, " is damaged: ", args...);
}

// A segment before its split: it goes where the record's hash leads.
Status CheckImage(const UndoRecordHeader& record, const Segment& image, const TableState& table,
                  const std::string& path) {
  const uint32_t depth = LoadRelaxed(image.local_depth);
  if (record.segment >= table.segments || depth > table.depth) {
    return Damaged(path, "an image of segment ", record.segment, " of ", table.segments,
                   ", of depth ", depth, " in a directory of depth ", table.depth);
  }
  uint32_t used = 0;
  for (const Entry& entry : image.entries) {
    const uint32_t row_plus_one = LoadRelaxed(entry.row_plus_one);
    used += row_plus_one != 0;
    if (row_plus_one == 0 || row_plus_one == kTombstone) continue;
    const uint64_t difference = HashKey(LoadRelaxed(entry.key)) ^ record.hash;
    if (row_plus_one <= table.rows && (depth == 0 || difference >> (64 - depth) == 0)) continue;
    return Damaged(path, "an image of segment ", record.segment, " with key ", entry.key,
                   ", which does not belong there, or its row ", row_plus_one - 1, " of ",
                   table.rows);
  }
  if (used == LoadRelaxed(image.used)) return Status();
  return Damaged(path, "an image of segment ", record.segment, " that counts ", image.used,
                 " entries and has ", used);
}

}  // namespace

Status CheckRecord(const State& state, uint64_t epoch, const std::string& path) {
  if (TSPS_FAULT_OFF("damage")) return Status();
  if (state.epoch != epoch) {
    return Damaged(path, "commit record ", state.epoch, " where record ", epoch, " should be");
  }
  if (state.recorded_tables > uint32_t{kMaxTables} || state.more_tables) {
    return Damaged(path, "the commit record counts ", state.recorded_tables, " tables, and has ",
                   state.more_tables ? "more" : "fewer");
  }
  for (const TableState& table : state.tables) {
    if (table.removed > kMaxRemoved) {
      return Damaged(path, table.removed, " removed tables in one place");
    }
    if (IsVacant(table)) {
      TableState nothing = {};
      nothing.removed = table.removed;
      if (std::memcmp(&table, &nothing, sizeof(table)) == 0) continue;
      return Damaged(path, "a table in the commit record has no name");
    }
    if (!IsTableName(TableName(table))) {
      return Damaged(path, "a table in the commit record has a name that none can have");
    }
  }
  return Status();
}

Status CheckNumbers(const TableState& state, uint64_t max_rows, const std::string& folder) {
  if (TSPS_FAULT_OFF("damage")) return Status();
  if (state.depth > kMaxDepth) return Damaged(folder, "directory depth ", state.depth);
  if (state.segments < 1 || state.segments > uint64_t{1} << state.depth) {
    return Damaged(folder, state.segments, " segments at directory depth ", state.depth);
  }
  if (state.rows > kMaxRowNumber || state.live > state.rows ||
      state.free_rows != state.rows - state.live) {
    return Damaged(folder, state.rows, " rows, ", state.live, " of them in use and ",
                   state.free_rows, " free");
  }
  if (state.live > max_rows) {
    return Damaged(folder, state.live, " keys, more than the limit of ", max_rows);
  }
  if (!IsOptimizerKind(state.optimizer)) {
    return Damaged(folder, "unknown optimizer ", state.optimizer);
  }
  for (const float value : state.slot_init) {
    if (!std::isfinite(value)) return Damaged(folder, "initial slot value ", value);
  }
  return Status();
}

Status CheckUndoRecord(const UndoRecordHeader& record, const char* payload, const State& state,
                       const std::string& path) {
  if (TSPS_FAULT_OFF("damage")) return Status();
  if (record.table >= state.tables.size() || IsVacant(state.tables[record.table])) {
    return Damaged(path, "a record of table ", record.table, " of ", state.tables.size());
  }
  const TableState& table = state.tables[record.table];
  switch (record.kind) {
    case UndoKind::kRows: {
      const auto* const rows = reinterpret_cast<const uint32_t*>(payload);
      const uint32_t* const bad =
          std::find_if(rows, rows + record.n, [&](uint32_t row) { return row >= table.rows; });
      if (bad != rows + record.n) {
        return Damaged(path, "an image of row ", *bad, " of ", table.rows);
      }
      const int slots = SlotCount(static_cast<OptimizerKind>(table.optimizer));
      if (record.slots != static_cast<uint32_t>(slots)) {
        return Damaged(path, "images of ", record.slots, " slots of ", slots);
      }
      return Status();
    }
    case UndoKind::kInserts:
      return Status();
    case UndoKind::kErases: {
      const auto* const erased = reinterpret_cast<const ErasedEntry*>(payload);
      for (size_t i = 0; i < record.n; ++i) {
        if (erased[i].segment < table.segments && erased[i].entry < kSegmentEntries &&
            erased[i].row_plus_one >= 1 && erased[i].row_plus_one <= table.rows) {
          continue;
        }
        return Damaged(path, "an entry ", erased[i].entry, " of segment ", erased[i].segment,
                       " that had row ", int64_t{erased[i].row_plus_one} - 1);
      }
      return Status();
    }
    case UndoKind::kSegment:
      return CheckImage(record, *reinterpret_cast<const Segment*>(payload), table, path);
  }
  return Status();
}

Status CheckIndex(const TableFiles& files, const TableState& state) {
  if (TSPS_FAULT_OFF("damage") || TSPS_FAULT_OFF("undo")) return Status();
  const uint32_t* const directory = files.directory_entries() + (size_t{1} << state.depth);
  std::vector<bool> met(state.segments);
  uint64_t used = 0;
  size_t width = 0;
  for (size_t i = 0; i < size_t{1} << state.depth; i += width) {
    const uint32_t number = directory[i];
    if (number >= state.segments || met[number]) {
      return Damaged(files.folder(), "directory entry ", i, " names segment ", number, " of ",
                     state.segments);
    }
    met[number] = true;
    const Segment& segment = *files.segment(number);
    if (segment.local_depth > state.depth || segment.used > kSegmentLimit) {
      return Damaged(files.folder(), "segment ", number, " is of depth ", segment.local_depth,
                     " and has ", segment.used, " entries");
    }
    used += segment.used;
    width = size_t{1} << (state.depth - segment.local_depth);
    const auto names_it = [&](uint32_t entry) { return entry == number; };
    if (i % width != 0 || !std::all_of(directory + i, directory + i + width, names_it)) {
      return Damaged(files.folder(), "segment ", number, " of depth ", segment.local_depth,
                     " is not where directory entry ", i, " names it");
    }
  }
  if (std::find(met.begin(), met.end(), false) != met.end()) {
    return Damaged(files.folder(), "no directory entry names segment ",
                   std::find(met.begin(), met.end(), false) - met.begin());
  }
  if (used < state.live) {
    return Damaged(files.folder(), used, " entries for ", state.live, " keys");
  }
  std::vector<bool> free(state.free_rows > 0 ? state.rows : 0);
  for (uint64_t i = 0; i < state.free_rows; ++i) {
    const uint32_t row = files.free_stack()[i];
    if (row >= state.rows || free[row]) {
      return Damaged(files.folder(), "free row ", row, row < state.rows ? " twice" : " of ",
                     row < state.rows ? "" : std::to_string(state.rows));
    }
    free[row] = true;
  }
  return Status();
}

Status CheckKeys(const TableFiles& files, const TableState& state, uint32_t number) {
  if (TSPS_FAULT_OFF("damage")) return Status();
  const Segment& segment = *files.segment(number);
  for (const Entry& entry : segment.entries) {
    if (entry.row_plus_one == 0 || entry.row_plus_one == kTombstone) continue;
    const uint64_t hash = HashKey(entry.key);
    if (files.directory_entries()[DirectorySlot(hash, state.depth)] == number &&
        FindInSegment(segment, entry.key, hash) == &entry) {
      continue;
    }
    return Damaged(files.folder(), "key ", entry.key, " is in segment ", number,
                   ", not where its hash leads");
  }
  return Status();
}

Status CheckSegment(const TableFiles& files, const TableState& state, uint32_t number) {
  if (TSPS_FAULT_OFF("damage")) return Status();
  const Segment& segment = *files.segment(number);
  uint32_t used = 0;
  for (const Entry& entry : segment.entries) {
    used += entry.row_plus_one != 0;
    if (entry.row_plus_one > state.rows && entry.row_plus_one != kTombstone) {
      return Damaged(files.folder(), "key ", entry.key, " has row ", entry.row_plus_one - 1, " of ",
                     state.rows);
    }
  }
  if (used == segment.used) return Status();
  return Damaged(files.folder(), "segment ", number, " counts ", segment.used, " entries, has ",
                 used);
}

}  // namespace tsps
