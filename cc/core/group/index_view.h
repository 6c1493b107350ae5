// IndexView: a table's index as a reader sees it: if a mutation is unfinished, as it was before. It
// serves code that reads entries one by one; ProbeRows (probe.h) is the fast way to many rows.
//
// Reads may race with the writer. They then return garbage, but never read outside of the files, if
// the files are long enough for the state (TableFiles::CheckIndexFiles).
#ifndef TFSPS_CORE_GROUP_INDEX_VIEW_H_
#define TFSPS_CORE_GROUP_INDEX_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "core/group/overlay.h"
#include "core/table/index.h"
#include "core/table/layout.h"
#include "core/table/table_files.h"

namespace tsps {

class IndexView {
 public:
  // `overlay` is that of the unfinished mutation, or null. `place` is the table's. `files` and
  // `overlay` must outlive this.
  IndexView(const TableFiles& files, const TableState& state, const Overlay* overlay, int place);

  size_t directory_size() const { return size_t{1} << depth_; }
  // Returns the segment number in entry i of the directory. In a race the table may not have such a
  // segment.
  uint32_t DirectoryEntry(size_t i) const;
  uint32_t SegmentOf(uint64_t hash) const {
    return DirectoryEntry(DirectoryPosition(hash, depth_) - directory_size());
  }
  // --- For segments that the table has. ---
  const Segment& segment(uint32_t number) const;
  int64_t Key(uint32_t number, uint32_t at) const {
    return LoadRelaxed(segment(number).entries[at].key);
  }
  // Returns 0 for an entry that was never used, kTombstone for an erased one, else row number + 1.
  uint32_t RowPlusOne(uint32_t number, uint32_t at) const;
  // Returns the entry of the key; kSegmentEntries if the segment does not have it.
  uint32_t Find(uint32_t number, int64_t key, uint64_t hash) const;

 private:
  const TableFiles& files_;
  const Overlay* const overlay_;
  const int place_;
  const uint32_t depth_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_INDEX_VIEW_H_
