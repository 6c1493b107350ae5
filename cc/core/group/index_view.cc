#include "core/group/index_view.h"

#include <algorithm>

namespace tsps {

IndexView::IndexView(const TableFiles& files, const TableState& state, const Overlay* overlay,
                     int place)
    : files_(files), overlay_(overlay), place_(place), depth_(std::min(state.depth, kMaxDepth)) {}

uint32_t IndexView::DirectoryEntry(size_t i) const {
  if (overlay_ != nullptr) {
    for (const auto& [number, before] : overlay_->segments(place_)) {  // at most one
      const uint32_t depth = std::min(before.local_depth, depth_);
      const size_t prefix = depth == 0 ? 0 : before.hash >> (64 - depth);
      if (i >> (depth_ - depth) == prefix) return number;
    }
  }
  return LoadRelaxed(files_.directory_entries()[directory_size() + i]);
}

const Segment& IndexView::segment(uint32_t number) const {
  const Segment* image = overlay_ == nullptr ? nullptr : overlay_->SegmentImage(place_, number);
  return image != nullptr ? *image : *files_.segment(number);
}

uint32_t IndexView::RowPlusOne(uint32_t number, uint32_t at) const {
  const Entry& entry = segment(number).entries[at];
  const uint32_t row_plus_one = LoadRelaxed(entry.row_plus_one);
  if (overlay_ == nullptr) return row_plus_one;
  if (row_plus_one != kTombstone && overlay_->Inserted(place_, LoadRelaxed(entry.key))) return 0;
  const uint32_t erased = overlay_->ErasedRow(place_, number, at);
  return erased != 0 ? erased : row_plus_one;
}

uint32_t IndexView::Find(uint32_t number, int64_t key, uint64_t hash) const {
  uint32_t at = HomeEntry(hash);
  for (uint32_t i = 0; i < kSegmentEntries; ++i) {
    const uint32_t row_plus_one = RowPlusOne(number, at);
    if (row_plus_one == 0) return kSegmentEntries;
    if (row_plus_one != kTombstone && Key(number, at) == key) return at;
    if (++at == kSegmentEntries) at = 0;
  }
  return kSegmentEntries;
}

}  // namespace tsps
