#include "core/serving/key_filter.h"

namespace tsps {

void FilterWriter::AddEarlier(uint64_t hash) {
  const auto at = static_cast<size_t>(PlaceOf(hash, blocks_) - written_);
  if (at >= pending_.size()) pending_.resize(at + 1);
  for (size_t word = 0; word < 8; ++word) pending_[at].words[word] |= FilterBit(hash, word);
}

Status FilterWriter::Add(uint64_t hash) {
  TSPS_RETURN_IF_ERROR(WriteTo(PlaceOf(hash, blocks_)));
  AddEarlier(hash);
  return Status();
}

Status FilterWriter::Finish() { return WriteTo(blocks_); }

Status FilterWriter::WriteTo(uint64_t block) {
  for (; written_ < block; ++written_) {
    const FilterBlock next = pending_.empty() ? FilterBlock{} : pending_.front();
    if (!pending_.empty()) pending_.pop_front();
    TSPS_RETURN_IF_ERROR(section_.Append(&next, sizeof(next)));
  }
  return Status();
}

}  // namespace tsps
