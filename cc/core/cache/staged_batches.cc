#include "core/cache/staged_batches.h"

namespace tsps {

size_t StagedBatches::IndexOf(uint64_t fingerprint) const {
  size_t i = 0;
  while (i < batches_.size() && batches_[i].fingerprint != fingerprint) ++i;
  return i;
}

void StagedBatches::Add(Batch batch) {
  batch.number = next_++;
  batches_.push_back(std::move(batch));
}

StagedBatches::Batch StagedBatches::RemoveFirst() {
  Batch first = std::move(batches_.front());
  batches_.pop_front();
  return first;
}

int StagedBatches::Distance(uint16_t mask) const {
  if (mask == 0 || batches_.empty()) return kNever;
  const uint32_t first = batches_.front().number % 16;
  const uint32_t turned = ((uint32_t{mask} << 16 | mask) >> first) & 0xffffu;
  return __builtin_ctz(turned) + 1;
}

uint16_t StagedBatches::MaskOf(int64_t key) const {
  const auto found = waiting_.find(key);
  return found == waiting_.end() ? 0 : found->second.mask;
}

void StagedBatches::NeedNoMore(int64_t key, uint16_t bit) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  found->second.mask &= static_cast<uint16_t>(~bit);
  if (found->second.mask == 0) waiting_.erase(found);
}

uint16_t StagedBatches::Enter(int64_t key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return 0;
  const uint16_t mask = found->second.mask;
  waiting_.erase(found);
  return mask;
}

void StagedBatches::Leave(int64_t key, uint16_t mask) {
  if (mask != 0) waiting_[key] = {mask, ++written_};
}

void StagedBatches::Written(int64_t key) {
  const auto found = waiting_.find(key);
  if (found != waiting_.end()) found->second.written = ++written_;
}

bool StagedBatches::Counts(const Batch& batch, int64_t key) const {
  if (all_written_ > batch.written) return false;
  const auto found = waiting_.find(key);
  return found != waiting_.end() && found->second.written <= batch.written;
}

}  // namespace tsps
