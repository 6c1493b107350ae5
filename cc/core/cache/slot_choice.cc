// SlotDirectory: chooses the missing keys that enter and the keys that leave, and tracks the keys
// that staged batches need.
#include <algorithm>
#include <cassert>

#include "core/cache/slot_directory.h"

namespace tsps {

// The slots that may be given away, in this order: the coldest slots that neither the planned step
// nor a staged batch needs, then slots that staged batches need, the one needed last first.
class SlotDirectory::Victims {
 public:
  explicit Victims(SlotDirectory* directory) : directory_(*directory) {}
  ~Victims() {
    for (const Passed& passed : passed_) directory_.queue_.Push(passed.slot, passed.heat_class);
  }
  Victims(const Victims&) = delete;
  Victims& operator=(const Victims&) = delete;

  static constexpr uint32_t kNone = VictimQueue::kNone;

  // Returns the next slot to give away; kNone if the planned step needs all others.
  uint32_t Next() {
    if (next_ == kNone) next_ = Search();
    return next_;
  }
  int distance() const { return distance_; }  // the number of batches until Next() is needed
  void Take() {
    directory_.in_take_[next_] = true;
    next_ = kNone;
  }
  // Keeps the slot that Next() returned.
  void PutBack() {
    if (next_ == kNone) return;
    passed_.push_back({next_, directory_.ClassOf(next_), distance_});
    next_ = kNone;
  }

 private:
  struct Passed {
    uint32_t slot;
    uint32_t heat_class;
    int distance;
  };
  static constexpr int kInTake = 0;  // in place of a distance, which is at least 1

  // Returns the next victim, and sets distance_.
  uint32_t Search() {
    if (!all_passed_) {
      const uint32_t slot = NextUnneeded();
      if (slot != kNone) return slot;
      all_passed_ = true;
      std::stable_sort(passed_.begin(), passed_.end(),
                       [](const Passed& a, const Passed& b) { return a.distance < b.distance; });
    }
    return LastNeeded();
  }
  // Returns the coldest slot that is not needed, or kNone. Slots before it are added to passed_.
  uint32_t NextUnneeded() {
    uint32_t heat_class;
    const auto class_of = [&](uint32_t slot) { return directory_.ClassOf(slot); };
    while (true) {
      const uint32_t slot = directory_.queue_.Pop(class_of, &heat_class);
      if (slot == kNone) return kNone;
      if (slot >= directory_.used_) continue;
      // A slot that is taken here may be in the queue twice. Slots of the take keep their place.
      distance_ = directory_.in_take_[slot]
                      ? kInTake
                      : directory_.staged_.Distance(directory_.slots_[slot].mask);
      if (distance_ == StagedBatches::kNever) return slot;
      passed_.push_back({slot, heat_class, distance_});
    }
  }
  // Returns the slot in passed_ that staged batches need last, or kNone.
  uint32_t LastNeeded() {
    while (!passed_.empty() && passed_.back().distance != kInTake) {
      const Passed last = passed_.back();
      passed_.pop_back();
      if (directory_.in_take_[last.slot]) continue;
      distance_ = last.distance;
      return last.slot;
    }
    return kNone;
  }

  SlotDirectory& directory_;
  std::vector<Passed> passed_;
  bool all_passed_ = false;
  uint32_t next_ = kNone;
  int distance_ = StagedBatches::kNever;
};

void SlotDirectory::ChooseEntering(std::vector<Miss>* misses, Plan* plan) {
  const size_t free = slots_.size() - used_;
  if (misses->size() <= free || lru()) {
    Victims victims(this);
    uint32_t next = used_;
    for (const Miss& miss : *misses) {
      uint32_t slot = next;
      if (next < slots_.size()) {
        ++next;
      } else {
        slot = victims.Next();
        assert(slot != Victims::kNone);  // there are at least as many slots as keys
        plan->victims.push_back({slot, slots_[slot].key, slots_[slot].newer != 0});
        victims.Take();
      }
      plan->slots[miss.position] = static_cast<int32_t>(slot);
      plan->entering.push_back(miss.position);
      plan->counts.push_back(miss.count);
    }
    return;
  }
  Admit(misses, plan);
}

void SlotDirectory::Admit(std::vector<Miss>* misses, Plan* plan) {
  Victims victims(this);
  uint32_t next = used_;
  // The first victim is the coldest slot that no batch needs. A missing key that no batch needs
  // enters only if it is more frequent.
  const auto least = [&] { return HeatOf(victims.Next()) + weight_; };
  if (next == slots_.size()) {
    if (victims.Next() == Victims::kNone) return;
    const bool needed = victims.distance() != StagedBatches::kNever;
    const float bound = needed ? 0.0f : least();
    misses->erase(std::remove_if(misses->begin(), misses->end(),
                                 [&](const Miss& miss) {
                                   return miss.distance == StagedBatches::kNever &&
                                          (needed || miss.count <= bound);
                                 }),
                  misses->end());
  }
  std::sort(misses->begin(), misses->end(), [](const Miss& a, const Miss& b) {
    if (a.distance != b.distance) return a.distance < b.distance;
    return a.count != b.count ? a.count > b.count : a.position < b.position;
  });
  for (const Miss& miss : *misses) {
    uint32_t slot = next;
    if (next < slots_.size()) {
      ++next;
    } else {
      slot = victims.Next();
      if (slot == Victims::kNone) break;
      const bool enters = victims.distance() != miss.distance
                              ? miss.distance < victims.distance()
                              : miss.distance == StagedBatches::kNever && miss.count > least();
      if (!enters) break;  // the next keys do not enter either: they are needed later, or colder
      plan->victims.push_back({slot, slots_[slot].key, slots_[slot].newer != 0});
      victims.Take();
    }
    plan->slots[miss.position] = static_cast<int32_t>(slot);
    plan->entering.push_back(miss.position);
    plan->counts.push_back(miss.count);
  }
  victims.PutBack();
}

// --- staged batches ---

std::vector<uint8_t> SlotDirectory::Stage(uint64_t fingerprint, const int64_t* keys, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (staged_.size() == StagedBatches::kMost) {
    RemoveStaged(nullptr);
    ++counters_.dropped;
  }
  StagedBatches::Batch batch;
  batch.fingerprint = fingerprint;
  batch.written = staged_.written();
  batch.keys.assign(keys, keys + n);
  batch.absent.resize(n);
  const uint16_t bit = StagedBatches::BitOf(staged_.next_number());
  Search(
      keys, n, false, [&](size_t, uint32_t slot) { slots_[slot].mask |= bit; },
      [&](size_t i, uint64_t) {
        batch.absent[i] = 1;
        staged_.Need(keys[i], bit);
        ++counters_.staged_rows;
      });
  ++counters_.staged;
  std::vector<uint8_t> absent = batch.absent;
  staged_.Add(std::move(batch));
  return absent;
}

// Removes the first staged batch. If `counts` is given, sets for each key whether the row that was
// read ahead is valid; if `slots` is given, the slot of each key.
StagedBatches::Batch SlotDirectory::RemoveStaged(std::vector<uint8_t>* counts, int32_t* slots) {
  StagedBatches::Batch batch = staged_.RemoveFirst();
  const uint16_t bit = StagedBatches::BitOf(batch.number);
  Search(
      batch.keys.data(), batch.keys.size(), false,
      [&](size_t i, uint32_t slot) {
        slots_[slot].mask &= static_cast<uint16_t>(~bit);
        if (slots != nullptr) slots[i] = static_cast<int32_t>(slot);
      },
      [&](size_t i, uint64_t) {
        if (slots != nullptr) slots[i] = kNoSlot;
        if (counts != nullptr && batch.absent[i]) {
          (*counts)[i] = staged_.Counts(batch, batch.keys[i]);
        }
        staged_.NeedNoMore(batch.keys[i], bit);
      });
  return batch;
}

std::optional<std::vector<uint8_t>> SlotDirectory::Match(uint64_t fingerprint,
                                                         std::vector<int32_t>* slots) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t before = staged_.IndexOf(fingerprint);
  if (before == staged_.size()) return std::nullopt;
  for (size_t i = 0; i < before; ++i) RemoveStaged(nullptr);
  counters_.dropped += before;
  std::vector<uint8_t> counts(staged_.front().keys.size());
  if (slots != nullptr) slots->resize(counts.size());
  const StagedBatches::Batch batch =
      RemoveStaged(&counts, slots == nullptr ? nullptr : slots->data());
  ++counters_.matched;
  for (size_t i = 0; i < counts.size(); ++i) {
    counters_.staged_used += counts[i];
    counters_.staged_late += batch.absent[i] && !counts[i];
  }
  return counts;
}

void SlotDirectory::DropStaged() {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.dropped += staged_.size();
  while (staged_.size() != 0) RemoveStaged(nullptr);
}

}  // namespace tsps
