#include "core/cache/staging_queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/hash.h"
#include "core/gradients/dedupe.h"

namespace tsps {
namespace {

// The announced lookups are not those that training makes, if this many batches were passed over,
// and more than lookups were taken; or if no lookup of this many steps was announced, although
// earlier ones were.
constexpr uint64_t kPassedOver = 3 * StagingQueue::kMost;
constexpr uint64_t kStepsWithout = 64;

}  // namespace

StagedLookup::StagedLookup(std::vector<int64_t> announced)
    : ids(std::move(announced)), inverse(ids.size()) {
  keys = Dedupe({{ids.data(), ids.size(), inverse.data()}});
}

uint64_t StagedLookup::Fingerprint(const int64_t* ids, size_t n) {
  // The processor computes the four chains in parallel.
  uint64_t chains[4] = {n, 1, 2, 3};
  for (size_t i = 0; i < n; ++i) {
    uint64_t& chain = chains[i % 4];
    chain = (chain ^ static_cast<uint64_t>(ids[i])) * 0x9FB21C651E98DF25ULL;
    chain ^= chain >> 32;
  }
  uint64_t hash = 0;
  for (const uint64_t chain : chains) hash = HashKey(static_cast<int64_t>(hash ^ chain), hash);
  return hash;
}

// --- The dataset. ---

void StagingQueue::Add(int64_t index, std::vector<StagedLookup> lookups) {
  if (lookups.empty()) return;
  Batch batch;
  std::vector<IdSpan> spans;
  for (const StagedLookup& lookup : lookups) {
    Entry& entry = batch.entries.emplace_back();
    entry.fingerprint = StagedLookup::Fingerprint(lookup.ids.data(), lookup.ids.size());
    if (lookups.size() > 1) {
      entry.in_batch.resize(lookup.keys.size());
      spans.push_back({lookup.keys.data(), lookup.keys.size(), entry.in_batch.data()});
    }
  }
  const std::vector<int64_t> keys = lookups.size() > 1 ? Dedupe(spans) : lookups[0].keys;

  const std::lock_guard<std::mutex> lock(mutex_);
  const bool begins = batches_.Begin(index, [this](const Batch& dropped) { Drop(dropped); });
  if (begins) directory_.DropStaged();
  auto n_unmatched = static_cast<size_t>(std::count_if(
      batches_.begin(), batches_.end(), [](const Batch& waiting) { return !waiting.matched; }));
  // The directory drops its first batch, too, but no longer has batches that were matched.
  for (; n_unmatched >= kMost; --n_unmatched) {
    while (batches_.front().matched) PassOverFirst();
    PassOverFirst();
  }
  batch.number = ++next_batch_;
  batch.step = step_;
  const std::vector<uint8_t> absent = directory_.Stage(batch.number, keys.data(), keys.size());
  for (size_t l = 0; l < lookups.size(); ++l) {
    Entry& entry = batch.entries[l];
    StagedLookup& lookup = lookups[l];
    for (size_t i = 0; i < lookup.keys.size(); ++i) {
      const size_t key = entry.in_batch.empty() ? i : static_cast<size_t>(entry.in_batch[i]);
      if (absent[key]) lookup.copied.push_back(static_cast<uint32_t>(i));
    }
    if (!lookup.copied.empty()) {
      entry.copy = ++next_copy_;
      entry.state = State::kWaiting;
    }
    entry.lookup = std::make_shared<const StagedLookup>(std::move(lookup));
  }
  counters_.announced += batch.entries.size();
  batches_.Add(std::move(batch));
  changed_.notify_all();
}

void StagingQueue::Drop(const Batch& batch) {
  for (const Entry& entry : batch.entries) {
    counters_.dropped += entry.state != State::kTaken;
    if (entry.state == State::kCopied) removed_.push_back(entry.copy);
  }
  changed_.notify_all();
}

void StagingQueue::PassOverFirst() {
  passed_over_ += !batches_.front().matched;
  if (passed_over_ >= kPassedOver && passed_over_ > counters_.taken) astray_ = true;
  batches_.DropFirst(1, [this](const Batch& dropped) { Drop(dropped); });
}

// --- The copier. ---

StagingQueue::Entry* StagingQueue::FindCopy(int64_t copy) {
  for (Batch& batch : batches_) {
    for (Entry& entry : batch.entries) {
      if (entry.copy == copy) return &entry;
    }
  }
  return nullptr;
}

StagingQueue::Entry* StagingQueue::FirstWaiting(Batch** batch) {
  for (Batch& candidate : batches_) {
    for (Entry& entry : candidate.entries) {
      if (entry.state != State::kWaiting) continue;
      *batch = &candidate;
      return &entry;
    }
  }
  return nullptr;
}

StagingQueue::Work StagingQueue::Next(int64_t copied) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (copied != 0) {
    Entry* const entry = FindCopy(copied);
    if (entry != nullptr && entry->state == State::kCopying) {
      entry->state = State::kCopied;
      counters_.rows_copied += entry->lookup->copied.size();
    } else {
      removed_.push_back(copied);  // it was dropped meanwhile
    }
    changed_.notify_all();
  }
  while (!closed_) {
    Work work;
    work.astray = astray_ && !std::exchange(astray_reported_, astray_);
    Batch* batch = nullptr;
    if (Entry* const entry = FirstWaiting(&batch); entry != nullptr) {
      entry->state = State::kCopying;
      work.copy = entry->copy;
      work.lookup = entry->lookup;
      work.step = batch->step;
    }
    work.removed = std::exchange(removed_, {});
    if (work.copy != 0 || work.astray || !work.removed.empty()) return work;
    changed_.wait(lock);
  }
  Work closed;
  closed.closed = true;
  return closed;
}

void StagingQueue::Fail(int64_t copy) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry* const entry = FindCopy(copy);
  if (entry != nullptr) entry->state = State::kNothing;
  changed_.notify_all();
}

bool StagingQueue::Wanted(int64_t copy) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !closed_ && const_cast<StagingQueue*>(this)->FindCopy(copy) != nullptr;
}

void StagingQueue::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

// --- Training. ---

bool StagingQueue::Entry::IsOf(const int64_t* ids, size_t n) const {
  return lookup->ids.size() == n && std::memcmp(lookup->ids.data(), ids, n * sizeof(int64_t)) == 0;
}

StagingQueue::Entry* StagingQueue::Find(uint64_t fingerprint, const int64_t* ids, size_t n,
                                        Batch** batch) {
  for (Batch& candidate : batches_) {
    for (Entry& entry : candidate.entries) {
      if (entry.state == State::kTaken || entry.fingerprint != fingerprint || !entry.IsOf(ids, n)) {
        continue;
      }
      *batch = &candidate;
      return &entry;
    }
  }
  return nullptr;
}

bool StagingQueue::WouldWait(const int64_t* ids, size_t n) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return false;
  // At most one is being copied, so no fingerprint is needed to find it.
  for (const Batch& batch : batches_) {
    for (const Entry& entry : batch.entries) {
      if (entry.state == State::kCopying) return entry.IsOf(ids, n);
    }
  }
  return false;
}

std::vector<int32_t> StagingQueue::Match(Batch* batch) {
  std::vector<int32_t> slots;
  if (batch->matched) return slots;
  batch->matched = true;
  batch->changes = changes_;
  batch->counts = directory_.Match(batch->number, &slots).value_or(std::vector<uint8_t>());
  return slots;
}

StagingQueue::Taken StagingQueue::Take(const int64_t* ids, size_t n) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock<std::mutex> lock(mutex_);
  if (batches_.empty()) return {};
  const uint64_t fingerprint = StagedLookup::Fingerprint(ids, n);
  Batch* batch = nullptr;
  Entry* entry = Find(fingerprint, ids, n, &batch);
  if (entry == nullptr) return {};
  if (entry->state == State::kCopying) {
    const Clock::time_point begun = Clock::now();
    while (entry != nullptr && entry->state == State::kCopying && !closed_) {
      changed_.wait(lock);
      entry = Find(fingerprint, ids, n, &batch);  // it may have been dropped
    }
    counters_.waited_ns += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
    if (entry == nullptr || closed_) return {};
  }
  const uint64_t number = batch->number;
  while (batches_.front().number != number) PassOverFirst();  // invalidates `batch`, not the number
  entry = Find(fingerprint, ids, n, &batch);
  std::vector<int32_t> slots = Match(batch);
  steps_without_ = 0;

  Taken taken;
  taken.lookup = entry->lookup;
  const std::vector<int64_t>& keys = taken.lookup->keys;
  taken.positions.assign(keys.size(), -1);
  if (slots.size() == keys.size() && entry->in_batch.empty()) {
    taken.slots = std::move(slots);
  } else {
    taken.slots.resize(keys.size());
    directory_.Find(keys.data(), keys.size(), taken.slots.data());
  }
  if (entry->state == State::kCopied) {
    taken.copy = entry->copy;
    const bool valid = batch->changes == changes_ && !batch->counts.empty();
    for (size_t c = 0; valid && c < taken.lookup->copied.size(); ++c) {
      const uint32_t i = taken.lookup->copied[c];
      const size_t key = entry->in_batch.empty() ? i : static_cast<size_t>(entry->in_batch[i]);
      if (!batch->counts[key] || taken.slots[i] != SlotDirectory::kNoSlot) continue;
      taken.positions[i] = static_cast<int32_t>(c);
      ++counters_.rows_used;
    }
  }
  entry->state = State::kTaken;
  ++counters_.taken;
  const bool done = std::all_of(batch->entries.begin(), batch->entries.end(),
                                [](const Entry& each) { return each.state == State::kTaken; });
  if (done) batches_.TakeFirst();
  return taken;
}

Status StagingQueue::Commit(uint64_t step, const std::function<Status()>& commit) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++changes_;
  step_ = step;
  if (counters_.announced != 0 && ++steps_without_ == kStepsWithout) {
    astray_ = true;
    changed_.notify_all();
  }
  return commit();
}

void StagingQueue::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++changes_;
  step_ = 0;
  directory_.Clear();
}

size_t StagingQueue::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return batches_.size();
}

StagingQueue::Counters StagingQueue::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace tsps
