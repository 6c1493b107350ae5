#include "core/serving/layer_merge.h"

#include <utility>

namespace tsps {

Result<std::unique_ptr<LayerMerge>> LayerMerge::Of(
    std::vector<std::shared_ptr<const ServingFile>> files) {
  std::unique_ptr<LayerMerge> merge(new LayerMerge);
  merge->files_ = std::move(files);
  TSPS_RETURN_IF_ERROR(merge->Rewind());
  const bool to_base = merge->files_.back()->header().is_layer == 0;
  uint64_t keys = 0;
  for (ServingEntry entry;;) {
    TSPS_ASSIGN_OR_RETURN(const bool more, merge->Next(&entry));
    if (!more) break;
    keys += !to_base || entry.row != nullptr;
  }
  merge->keys_ = keys;
  TSPS_RETURN_IF_ERROR(merge->Rewind());
  return merge;
}

Status LayerMerge::Rewind() {
  cursors_.clear();
  for (const auto& file : files_) {
    TSPS_ASSIGN_OR_RETURN(ServingFile::Cursor cursor, file->Begin());
    cursors_.push_back(std::move(cursor));
  }
  return Status();
}

Result<bool> LayerMerge::Next(ServingEntry* entry) {
  const ServingFile::Cursor* first = nullptr;  // the newest file with the smallest hash
  for (const ServingFile::Cursor& cursor : cursors_) {
    if (cursor.done()) continue;
    if (first == nullptr || cursor.entry().hash < first->entry().hash) first = &cursor;
  }
  if (first == nullptr) return false;
  *entry = first->entry();
  for (ServingFile::Cursor& cursor : cursors_) {
    if (cursor.done() || cursor.entry().hash != entry->hash) continue;
    TSPS_RETURN_IF_ERROR(cursor.Next());
  }
  return true;
}

CodeError LayerMerge::error() const {
  CodeError error;
  for (const auto& file : files_) error.Add(file->error());
  return error;
}

}  // namespace tsps
