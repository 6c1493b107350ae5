#include "core/cache/slot_directory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/prefetch.h"

namespace tsps {
namespace {

constexpr float kMostWeight = 1e20f;
// kLru: the queue has about this many classes at most.
constexpr size_t kLruClasses = 4096;

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

SlotDirectory::SlotDirectory(const Options& options)
    : options_(options),
      index_(options.slots),
      slots_(options.slots),
      queue_(options.slots),
      in_take_(options.slots) {
  if (!lru()) sketch_.emplace(options.slots);
}

size_t SlotDirectory::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return index_.bytes() + slots_.capacity() * sizeof(Slot) + queue_.bytes() +
         (sketch_ ? sketch_->bytes() : 0) + in_take_.capacity() / 8;
}

SlotDirectory::Counters SlotDirectory::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

// --- heat ---

float SlotDirectory::HeatOf(uint32_t slot) const {
  float heat;
  std::memcpy(&heat, &slots_[slot].heat, sizeof(heat));
  return heat;
}

void SlotDirectory::SetHeat(uint32_t slot, float heat) { slots_[slot].heat = BitsOf(heat); }

// The leading bits of floats that are not negative ascend with the floats: 16 classes per octave.
uint32_t SlotDirectory::ClassOf(uint32_t slot) const {
  return lru() ? slots_[slot].heat : slots_[slot].heat >> 19;
}

void SlotDirectory::Use(uint32_t slot) {
  const uint32_t before = ClassOf(slot);
  if (lru()) {
    slots_[slot].heat = lru_class_;
  } else {
    SetHeat(slot, HeatOf(slot) + weight_);
  }
  if (ClassOf(slot) == before) return;
  if (queue_.full()) {
    FillQueue();
  } else {
    queue_.Push(slot, ClassOf(slot));
  }
}

void SlotDirectory::FillQueue() {
  queue_.Clear();
  for (uint32_t slot = 0; slot < used_; ++slot) queue_.Push(slot, ClassOf(slot));
}

// Begins a plan: reduces the weight of earlier uses.
void SlotDirectory::BeginTake(size_t n) {
  if (lru()) {
    // Each plan begins a new class, unless the last class has few uses compared with the slots.
    if (lru_uses_ >= std::max<size_t>(1, slots_.size() / kLruClasses)) {
      ++lru_class_;
      lru_uses_ = 0;
    }
    lru_uses_ += n;
    return;
  }
  const double uses = options_.memory * static_cast<double>(slots_.size());
  weight_ *= static_cast<float>(std::exp(std::min(static_cast<double>(n) / uses, 20.0)));
  if (weight_ < kMostWeight) return;
  const float factor = 1 / weight_;
  sketch_->Scale(factor);
  for (uint32_t slot = 0; slot < used_; ++slot) SetHeat(slot, HeatOf(slot) * factor);
  weight_ = 1.0f;
  FillQueue();
}

// --- keys ---

void SlotDirectory::Find(const int64_t* keys, size_t n, int32_t* slots) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Search(
      keys, n, false, [&](size_t i, uint32_t slot) { slots[i] = static_cast<int32_t>(slot); },
      [&](size_t i, uint64_t) { slots[i] = kNoSlot; });
}

uint64_t SlotDirectory::changes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return changes_;
}

// --- plans ---

// Drops a plan that was not committed: its victims keep their slots.
void SlotDirectory::DropPlan() {
  for (const uint32_t slot : planned_) queue_.Push(slot, ClassOf(slot));
  planned_.clear();
}

Result<SlotDirectory::Plan> SlotDirectory::MakePlan(const int64_t* keys, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lru() && n > slots_.size()) {
    return Error(Code::kInvalidArgument, "the batch has ", n, " unique keys, but the cache has ",
                 slots_.size(),
                 " rows. Policy \"lru\" keeps every row of a batch, so the step was not applied. "
                 "Increase `rows` of tsps.DeviceCache, use policy \"admission\", or make batches "
                 "smaller");
  }
  DropPlan();
  BeginTake(n);
  Plan plan;
  plan.number = ++plans_;
  plan.slots.resize(n);
  std::vector<Miss> misses;
  const bool staged = staged_.size() != 0;
  Search(
      keys, n, !lru(),
      [&](size_t i, uint32_t slot) {
        plan.slots[i] = static_cast<int32_t>(slot);
        in_take_[slot] = true;
        Use(slot);
      },
      [&](size_t i, uint64_t hash) {
        plan.slots[i] = kNoSlot;
        const float count = lru() ? 0.0f : sketch_->Add(hash, weight_);
        const int distance =
            staged ? staged_.Distance(staged_.MaskOf(keys[i])) : StagedBatches::kNever;
        misses.push_back({static_cast<uint32_t>(i), count, distance});
      });
  ++counters_.takes;
  counters_.keys += n;
  counters_.hits += n - misses.size();
  ChooseEntering(&misses, &plan);
  for (const int32_t slot : plan.slots) {
    if (slot != kNoSlot) in_take_[static_cast<size_t>(slot)] = false;
  }
  for (const Victim& victim : plan.victims) planned_.push_back(victim.slot);
  return plan;
}

Status SlotDirectory::Commit(const Plan& plan, const int64_t* keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (plan.number != plans_) {
    return Error(Code::kInternal, "plan ", plan.number,
                 " of a device cache cannot be committed, because plan ", plans_,
                 " was made after it");
  }
  ++plans_;  // so that no plan is committed twice
  planned_.clear();
  changes_ += !plan.entering.empty();  // victims leave only for keys that enter
  const auto prefetch = [&](int64_t key) {
    const uint64_t hash = Hash(key);
    index_.Prefetch(static_cast<uint32_t>(hash));
    if (sketch_) sketch_->Prefetch(hash);
  };
  for (size_t v = 0; v < plan.victims.size(); ++v) {
    PrefetchAhead<kAhead>(v, plan.victims.size(),
                          [&](size_t next) { prefetch(plan.victims[next].key); });
    const Victim& victim = plan.victims[v];
    const uint64_t hash = Hash(victim.key);
    Slot& slot = slots_[victim.slot];
    index_.Erase(static_cast<uint32_t>(hash), victim.slot);
    if (sketch_) sketch_->Set(hash, HeatOf(victim.slot));
    staged_.Leave(victim.key, slot.mask);
    newer_ -= slot.newer != 0;
    slot = {};
  }
  if (staged_.size() != 0) {
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      if (plan.slots[i] == kNoSlot) staged_.Written(keys[i]);
    }
  }
  for (size_t e = 0; e < plan.entering.size(); ++e) {
    PrefetchAhead<kAhead>(e, plan.entering.size(),
                          [&](size_t next) { prefetch(keys[plan.entering[next]]); });
    const uint32_t i = plan.entering[e];
    const uint64_t hash = Hash(keys[i]);
    const auto slot = static_cast<uint32_t>(plan.slots[i]);
    slots_[slot].key = keys[i];
    slots_[slot].mask = staged_.Enter(keys[i]);
    if (lru()) {
      slots_[slot].heat = lru_class_;
    } else {
      SetHeat(slot, plan.counts[e]);
      sketch_->Set(hash, 0.0f);
    }
    index_.Insert(static_cast<uint32_t>(hash), slot);
    queue_.Push(slot, ClassOf(slot));
    used_ = std::max(used_, slot + 1);
  }
  for (const int32_t slot : plan.slots) {
    if (slot == kNoSlot) continue;
    newer_ += slots_[static_cast<size_t>(slot)].newer == 0;
    slots_[static_cast<size_t>(slot)].newer = clock_;
  }
  if (queue_.full()) FillQueue();
  counters_.entered += plan.entering.size();
  counters_.evicted += plan.victims.size();
  return {};
}

// --- rows that are newer on the device ---

SlotDirectory::Newer SlotDirectory::FindNewer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (clock_ == UINT8_MAX) {
    for (uint32_t slot = 0; slot < used_; ++slot) slots_[slot].newer = slots_[slot].newer != 0;
    clock_ = 1;
    ++era_;
  }
  Newer newer;
  newer.number = era_ << 8 | clock_++;
  for (uint32_t slot = 0; slot < used_; ++slot) {
    if (!slots_[slot].newer) continue;
    newer.slots.push_back(slot);
    newer.keys.push_back(slots_[slot].key);
  }
  return newer;
}

size_t SlotDirectory::newer() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return newer_;
}

bool SlotDirectory::IsStillNewer(const Newer& newer, size_t i) const {
  if (newer.slots[i] >= used_) return false;
  const Slot& slot = slots_[newer.slots[i]];
  return newer.number >> 8 == era_ && slot.newer != 0 && slot.newer <= (newer.number & 0xFF) &&
         slot.key == newer.keys[i];
}

std::vector<uint32_t> SlotDirectory::StillNewer(const Newer& newer) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < newer.slots.size(); ++i) {
    if (IsStillNewer(newer, i)) positions.push_back(static_cast<uint32_t>(i));
  }
  return positions;
}

void SlotDirectory::Flushed(const Newer& newer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < newer.slots.size(); ++i) {
    if (!IsStillNewer(newer, i)) continue;
    slots_[newer.slots[i]].newer = 0;
    --newer_;
  }
}

void SlotDirectory::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  planned_.clear();
  ++plans_;  // so that an earlier plan cannot be committed
  for (uint32_t slot = 0; slot < used_; ++slot) {
    staged_.Leave(slots_[slot].key, slots_[slot].mask);
    slots_[slot] = {};
  }
  staged_.AllWritten();
  index_.Clear();
  queue_.Clear();
  used_ = 0;
  newer_ = 0;
}

}  // namespace tsps
