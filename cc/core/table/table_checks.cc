#include "core/table/table_checks.h"

#include <algorithm>
#include <vector>

#include "core/base/fault_point.h"
#include "core/table/index.h"
#include "core/table/table_files.h"

namespace tsps {

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
  if (state.planes < TableFiles::kFirstGeneration || (state.flags & ~kKnownTableFlags) != 0) {
    return Damaged(folder, "list of planes ", state.planes, ", flags ", state.flags);
  }
  if (state.index_check != ~state.index_seed) {
    return Damaged(folder, "index seed ", state.index_seed, " with check ", state.index_check);
  }
  if (state.erased > TableFiles::MaxErased(state.rows)) {
    return Damaged(folder, "a log of ", state.erased, " erased keys");
  }
  return Status();
}

Status CheckIndex(const TableFiles& files, const TableState& state) {
  if (TSPS_FAULT_OFF("damage") || TSPS_FAULT_OFF("undo")) return Status();
  const uint32_t* const directory = files.directory_entries() + (size_t{1} << state.depth);
  std::vector<bool> seen(state.segments);
  uint64_t used = 0;
  size_t width = 0;
  for (size_t i = 0; i < size_t{1} << state.depth; i += width) {
    const uint32_t number = directory[i];
    if (number >= state.segments || seen[number]) {
      return Damaged(files.folder(), "directory entry ", i, " names segment ", number, " of ",
                     state.segments);
    }
    seen[number] = true;
    const Segment& segment = *files.segment(number);
    if (segment.local_depth > state.depth || segment.used > kSegmentLimit) {
      return Damaged(files.folder(), "segment ", number, " is of depth ", segment.local_depth,
                     " and has ", segment.used, " entries");
    }
    used += segment.used;
    width = size_t{1} << (state.depth - segment.local_depth);
    const auto is_number = [&](uint32_t entry) { return entry == number; };
    if (i % width != 0 || !std::all_of(directory + i, directory + i + width, is_number)) {
      return Damaged(files.folder(), "segment ", number, " of depth ", segment.local_depth,
                     " is not where directory entry ", i, " names it");
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) {
    return Damaged(files.folder(), "no directory entry names segment ",
                   std::find(seen.begin(), seen.end(), false) - seen.begin());
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

Status CheckKeyPlaces(const TableFiles& files, const TableState& state, uint32_t number) {
  if (TSPS_FAULT_OFF("damage")) return Status();
  const Segment& segment = *files.segment(number);
  for (const Entry& entry : segment.entries) {
    if (entry.row_plus_one == 0 || entry.row_plus_one == kTombstone) continue;
    const uint64_t hash = HashKey(entry.key, state.index_seed);
    if (files.directory_entries()[DirectoryPosition(hash, state.depth)] == number &&
        FindInSegment(segment, entry.key, hash) == &entry) {
      continue;
    }
    return Damaged(files.folder(), "key ", entry.key, " is in segment ", number,
                   ", not where its hash leads");
  }
  return Status();
}

}  // namespace tsps
