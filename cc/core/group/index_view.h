// IndexView: a table's index as a reader finds it, before an unfinished mutation if there is one.
// For what looks at entries one by one; ProbeRows (group_impl.h) is the fast way to many rows.
//
// Reads may race with the writer. What they return then is garbage, never a wild access, if the
// files have been found long enough for the state (TableFiles::CheckFiles).
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
  // `overlay`: null unless the writer died in a mutation. `place`: the table's.
  IndexView(const TableFiles& files, const TableState& state, const Overlay* overlay, int place);

  size_t directory_size() const { return size_t{1} << depth_; }
  // The segment that entry i of the directory names; not always one that is there.
  uint32_t DirectoryEntry(size_t i) const;
  uint32_t SegmentOf(uint64_t hash) const {
    return DirectoryEntry(DirectoryPosition(hash, depth_) - directory_size());
  }
  // --- Of a segment that is there. ---
  const Segment& segment(uint32_t number) const;
  int64_t Key(uint32_t number, uint32_t at) const {
    return LoadRelaxed(segment(number).entries[at].key);
  }
  // 0: never used; kTombstone: erased; else row number + 1.
  uint32_t RowPlusOne(uint32_t number, uint32_t at) const;
  // Where the key's entry is, kSegmentEntries if there is none.
  uint32_t Find(uint32_t number, int64_t key, uint64_t hash) const;

 private:
  const TableFiles& files_;
  const Overlay* const overlay_;
  const int place_;
  const uint32_t depth_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_INDEX_VIEW_H_
