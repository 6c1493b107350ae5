#include "core/group/record_checks.h"

#include <algorithm>
#include <cstring>

#include "core/base/fault_point.h"
#include "core/group/table_number.h"
#include "core/table/index.h"
#include "core/table/row_optimizer.h"

namespace tsps {
namespace {

// Checks the image of a segment before its split. The record's hash determines where it belongs.
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
    if (row_plus_one == kTombstone || row_plus_one <= table.rows) continue;
    return Damaged(path, "an image of segment ", record.segment, " with key ", entry.key,
                   " in row ", row_plus_one - 1, " of ", table.rows);
  }
  if (used == LoadRelaxed(image.used)) return Status();
  return Damaged(path, "an image of segment ", record.segment, " that counts ", image.used,
                 " entries and has ", used);
}

}  // namespace

Status CheckRecord(const State& state, uint64_t epoch, const ControlFile& control) {
  const std::string& path = control.path();
  if (TSPS_FAULT_OFF("damage")) return Status();
  if (state.epoch != epoch) {
    return Damaged(path, "commit record ", state.epoch, " where record ", epoch, " should be");
  }
  if (state.recorded_tables > uint32_t{kMaxTables} || state.more_tables) {
    return Damaged(path, "the commit record counts ", state.recorded_tables, " tables, and has ",
                   state.more_tables ? "more" : "fewer");
  }
  for (size_t place = 0; place < state.tables.size(); ++place) {
    const TableState& table = state.tables[place];
    if (table.removed > kMaxRemoved) {
      return Damaged(path, table.removed, " removed tables in one place");
    }
    if (IsVacant(table)) {
      TableState empty = {};
      empty.removed = table.removed;
      if (std::memcmp(&table, &empty, sizeof(table)) == 0) continue;
      return Damaged(path, "a table in the commit record is not marked as one");
    }
    if (!IsTableName(control.TableName(place))) {
      return Damaged(path, "a table in the commit record has a name that none can have");
    }
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
    case UndoKind::kFreeRows: {
      if (record.n > table.free_rows || record.hash > table.free_rows - record.n) {
        return Damaged(path, record.n, " free rows at ", record.hash, " of ", table.free_rows);
      }
      const auto* const rows = reinterpret_cast<const uint32_t*>(payload);
      const uint32_t* const bad =
          std::find_if(rows, rows + record.n, [&](uint32_t row) { return row >= table.rows; });
      if (bad == rows + record.n) return Status();
      return Damaged(path, "a free row ", *bad, " of ", table.rows);
    }
    case UndoKind::kSegment:
      return CheckImage(record, *reinterpret_cast<const Segment*>(payload), table, path);
  }
  return Status();
}

}  // namespace tsps
