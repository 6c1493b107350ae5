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
  const WaitingKeys::Entry* const found = waiting_.Find(key);
  return found == nullptr ? 0 : found->mask;
}

void StagedBatches::NeedNoMore(int64_t key, uint16_t bit) {
  WaitingKeys::Entry* const found = waiting_.Find(key);
  if (found == nullptr) return;
  const auto rest = static_cast<uint16_t>(found->mask & ~bit);
  if (rest == 0) {
    waiting_.Remove(found);
  } else {
    found->mask = rest;
  }
}

uint16_t StagedBatches::Enter(int64_t key) {
  WaitingKeys::Entry* const found = waiting_.Find(key);
  if (found == nullptr) return 0;
  const uint16_t mask = found->mask;
  waiting_.Remove(found);
  return mask;
}

void StagedBatches::Leave(int64_t key, uint16_t mask) {
  if (mask == 0) return;
  WaitingKeys::Entry& entry = waiting_.Put(key);
  entry.mask = mask;
  entry.written = ++written_;
}

void StagedBatches::Written(int64_t key) {
  WaitingKeys::Entry* const found = waiting_.Find(key);
  if (found != nullptr) found->written = ++written_;
}

bool StagedBatches::Counts(const Batch& batch, int64_t key) const {
  if (all_written_ > batch.written) return false;
  const WaitingKeys::Entry* const found = waiting_.Find(key);
  return found != nullptr && found->written <= batch.written;
}

}  // namespace tsps
