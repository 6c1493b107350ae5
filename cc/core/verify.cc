// GroupWriter::Verify: the invariants of every table's index, row numbers and free list, checked
// against each other.
#include <vector>

#include "core/group.h"
#include "core/group_impl.h"
#include "core/index.h"
#include "core/table_number.h"

namespace tsps {
namespace {

Status VerifyTable(TableFiles& files, const TableState& state) {
  const auto damaged = [&](const auto&... what) {
    return Error(Code::kDataLoss, "table ", files.folder(), " is damaged: ", what...);
  };
  TSPS_RETURN_IF_ERROR(files.CheckState(state));
  std::vector<bool> taken(state.rows);
  uint64_t live = 0;
  std::vector<uint32_t> reached(state.segments);  // directory entries per segment
  const size_t directory_size = size_t{1} << state.depth;
  for (size_t i = 0; i < directory_size; ++i) {
    const uint32_t number = files.directory_entries()[directory_size + i];
    if (number >= state.segments) return damaged("directory entry ", i, " names segment ", number);
    ++reached[number];
  }
  for (uint32_t number = 0; number < state.segments; ++number) {
    const Segment& segment = *files.segment(number);
    if (segment.local_depth > state.depth ||
        reached[number] != (1u << (state.depth - segment.local_depth))) {
      return damaged("segment ", number, " of depth ", segment.local_depth, " has ",
                     reached[number], " directory entries");
    }
    uint32_t used = 0;
    for (uint32_t at = 0; at < kSegmentEntries; ++at) {
      const Entry& entry = segment.entries[at];
      if (entry.row_plus_one == 0) continue;
      ++used;
      if (entry.row_plus_one == kTombstone) continue;
      const uint64_t hash = HashKey(entry.key);
      if (files.directory_entries()[DirectorySlot(hash, state.depth)] != number) {
        return damaged("key ", entry.key, " is in segment ", number, ", not where its hash leads");
      }
      if (FindInSegment(segment, entry.key, hash) != &entry)
        return damaged("key ", entry.key, " is there twice");
      const uint32_t row = entry.row_plus_one - 1;
      if (row >= state.rows)
        return damaged("key ", entry.key, " has row ", row, " of ", state.rows);
      if (taken[row]) return damaged("row ", row, " has two keys, one is ", entry.key);
      taken[row] = true;
      ++live;
    }
    if (used != segment.used)
      return damaged("segment ", number, " counts ", segment.used, " entries, has ", used);
  }
  if (live != state.live) return damaged(live, " keys, ", state.live, " counted");
  for (uint64_t i = 0; i < state.free_rows; ++i) {
    const uint32_t row = files.free_stack()[i];
    if (row >= state.rows || taken[row])
      return damaged("free row ", row, " is in use or out of range");
    taken[row] = true;
  }
  if (live + state.free_rows != state.rows) {
    return damaged(state.rows - live - state.free_rows, " rows are neither free nor in use");
  }
  return Status();
}

}  // namespace

Status GroupWriter::Verify() {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  for (size_t place = 0; place < impl_->state.tables.size(); ++place) {
    const TableState& table = impl_->state.tables[place];
    if (IsVacant(table)) continue;
    TSPS_RETURN_IF_ERROR(VerifyTable(*group_.impl_->tables.files(place), table));
  }
  return Status();
}

}  // namespace tsps
