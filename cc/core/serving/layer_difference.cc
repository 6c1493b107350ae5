#include "core/serving/layer_difference.h"

#include <cstring>
#include <utility>

namespace tsps {

Result<std::unique_ptr<LayerDifference>> LayerDifference::Of(
    std::shared_ptr<const ServingFile> base,
    std::vector<std::shared_ptr<const ServingFile>> older) {
  const ServingHeader& header = base->header();
  for (const auto& file : older) {
    if (file->header().hash_seed != header.hash_seed ||
        file->header().row_code != header.row_code || file->header().dim != header.dim) {
      return Error(Code::kInvalidArgument, base->path(), " and ", file->path(),
                   " have other hashes or rows, so they cannot be compared");
    }
  }
  std::unique_ptr<LayerDifference> difference(new LayerDifference);
  difference->base_ = std::move(base);
  difference->older_ = std::move(older);
  TSPS_RETURN_IF_ERROR(difference->Rewind());
  uint64_t keys = 0;
  for (ServingEntry entry;; ++keys) {
    TSPS_ASSIGN_OR_RETURN(const bool more, difference->Next(&entry));
    if (!more) break;
  }
  difference->keys_ = keys;
  TSPS_RETURN_IF_ERROR(difference->Rewind());
  return difference;
}

Status LayerDifference::Rewind() {
  cursor_.clear();
  TSPS_ASSIGN_OR_RETURN(ServingFile::Cursor cursor, base_->Begin());
  cursor_.push_back(std::move(cursor));
  TSPS_ASSIGN_OR_RETURN(merge_, LayerMerge::Of(older_));
  return NextOlder();
}

Status LayerDifference::NextOlder() {
  do {
    TSPS_ASSIGN_OR_RETURN(has_older_, merge_->Next(&older_entry_));
  } while (has_older_ && older_entry_.row == nullptr);
  return Status();
}

Result<bool> LayerDifference::Next(ServingEntry* entry) {
  ServingFile::Cursor& cursor = cursor_.front();
  while (!cursor.done() || has_older_) {
    if (cursor.done() || (has_older_ && older_entry_.hash < cursor.entry().hash)) {
      *entry = older_entry_;
      entry->row = nullptr;
      TSPS_RETURN_IF_ERROR(NextOlder());
      return true;
    }
    *entry = cursor.entry();
    const bool both = has_older_ && older_entry_.hash == entry->hash;
    const bool same =
        both && std::memcmp(older_entry_.row, entry->row, base_->header().row_bytes) == 0;
    TSPS_RETURN_IF_ERROR(cursor.Next());
    if (both) TSPS_RETURN_IF_ERROR(NextOlder());
    if (!same) return true;
  }
  return false;
}

}  // namespace tsps
