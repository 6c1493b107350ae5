// SlotDirectory: the rows of a table that a device keeps, and their slots. The directory decides
// which keys enter and leave the device. Its caller moves the rows accordingly.
//
// A step of training has three parts:
//
//   Find      in the forward pass: finds the slots of keys. It changes nothing, so a forward pass
//             may be repeated, or have no update
//   MakePlan  when the gradients are available: chooses the slots of the keys, the missing keys
//             that enter, and the victims whose slots they get
//   Commit    when the host has the rows of victims and the updated rows of keys without a slot.
//             Until then no key has moved
//
// A step that fails before Commit has changed nothing. MakePlan drops the plan of such a step.
//
// Rules for the caller that moves rows (cc/tests/cache_order_test.cc tests them):
// - A victim's row is read from its slot after its last update, and before the slot is written for
//   the entering key. Slots are written after Commit.
// - Before Commit the host has the rows of victims, and the updates of keys without a slot.
// - A row that was read ahead is used only if Match reports that it is valid. Other rows are read
//   again.
// - A step is committed before the next one finds its keys, and its rows on the device are written
//   before the next step reads them.
// - A lookup beside the steps, in another thread, takes the number of changes() while the device
//   has the rows of all committed steps. Then it finds its keys and reads their slots. It uses
//   these rows only if changes() has not advanced since, and repeats all of this otherwise.
//
// Policies:
// - kAdmission: a missing key enters only if it was used more often than the first victim, where
//   old uses count less and less. The rows of other missing keys are updated on the host.
// - kLru: every key enters, and the least recently used keys leave.
// With both policies, keys that staged batches need leave last, the one needed last first. With
// kAdmission, a missing key that a staged batch needs replaces a key that no staged batch needs.
//
// The directory takes at most 40 bytes per slot, plus the keys of staged batches. Thread-safe.
#ifndef TFSPS_CORE_CACHE_SLOT_DIRECTORY_H_
#define TFSPS_CORE_CACHE_SLOT_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/cache/frequency_sketch.h"
#include "core/cache/slot_index.h"
#include "core/cache/staged_batches.h"
#include "core/cache/victim_queue.h"

namespace tsps {

class SlotDirectory {
 public:
  enum class Policy { kAdmission, kLru };
  static constexpr int32_t kNoSlot = -1;
  static constexpr uint32_t kMostSlots = INT32_MAX;

  struct Options {
    uint32_t slots = 0;
    Policy policy = Policy::kAdmission;
    // The number of uses per slot after which the weight of a use has decreased to 1/e.
    double memory = 24;
  };
  struct Victim {
    uint32_t slot = 0;
    int64_t key = 0;
    bool newer = false;  // whether the device's row is newer than the host's
  };
  struct Plan {
    uint64_t number = 0;
    std::vector<int32_t> slots;      // of each key; kNoSlot: its row is and stays on the host
    std::vector<uint32_t> entering;  // positions of keys whose rows move to the device
    std::vector<Victim> victims;     // their slots go to entering keys; other slots were free
    std::vector<float> counts;       // the weighted uses of entering keys
  };
  struct Counters {
    uint64_t takes = 0;        // plans
    uint64_t keys = 0;         // keys of all plans
    uint64_t hits = 0;         // keys that had slots
    uint64_t entered = 0;      // keys that got slots
    uint64_t evicted = 0;      // victims
    uint64_t staged = 0;       // staged batches
    uint64_t matched = 0;      // staged batches that were taken
    uint64_t dropped = 0;      // staged batches that were not taken
    uint64_t staged_rows = 0;  // absent keys of staged batches
    uint64_t staged_used = 0;  // rows of matched batches that were valid
    uint64_t staged_late =
        0;  // rows of matched batches that were written, or got a slot, meanwhile
  };

  explicit SlotDirectory(const Options& options);

  size_t bytes() const;
  Counters counters() const;

  // Finds the slots of unique keys; kNoSlot for a key without one.
  void Find(const int64_t* keys, size_t n, int32_t* slots) const;
  // Returns how many commits moved keys into slots. Clear does not count: it frees slots, but their
  // rows stay on the device until keys enter.
  uint64_t changes() const;

  // Plans a step of unique keys. InvalidArgument: the policy is kLru, and there are more keys than
  // slots.
  Result<Plan> MakePlan(const int64_t* keys, size_t n);
  // Commits the last plan. Internal: another plan was made since.
  Status Commit(const Plan& plan, const int64_t* keys);

  // --- Keys whose rows are newer on the device. A flush copies them to the host during training:
  // FindNewer, a copy of the rows, StillNewer, a write of those rows on the host, Flushed. No plan
  // may be committed from StillNewer to Flushed. ---
  struct Newer {
    uint64_t number = 0;  // of the flush
    std::vector<uint32_t> slots;
    std::vector<int64_t> keys;
  };
  Newer FindNewer();
  size_t newer() const;
  // Returns the positions of keys whose rows have not changed since FindNewer, and are still newer
  // than the host's. Other rows were trained, evicted or flushed since; their copies must not be
  // written to the host.
  std::vector<uint32_t> StillNewer(const Newer& newer) const;
  // Records that the host has the rows that StillNewer returned.
  void Flushed(const Newer& newer);
  // Frees all slots, and makes all rows that were read ahead invalid, because the host's rows were
  // written outside of steps. Newer rows on the device are lost; flush them first if needed.
  void Clear();

  // --- Batches that are known ahead. ---
  // Stages a batch that will be taken. Returns a value for each of its unique keys, not 0 if its
  // row should be read ahead after this call. If StagedBatches::kMost batches are staged, drops the
  // first of them.
  std::vector<uint8_t> Stage(uint64_t fingerprint, const int64_t* keys, size_t n);
  // Takes the batch with this fingerprint, and drops batches that were staged before it. Returns a
  // value for each of its keys, not 0 if the row that was read ahead is valid, and writes the slots
  // of the keys to `slots`, if given. Returns nullopt if no such batch is staged.
  std::optional<std::vector<uint8_t>> Match(uint64_t fingerprint,
                                            std::vector<int32_t>* slots = nullptr);
  void DropStaged();

 private:
  struct Slot {
    int64_t key = 0;
    uint32_t heat = 0;  // kAdmission: the weighted uses, the bits of a float; kLru: the heat class
    uint16_t mask = 0;  // of the staged batches that need the key
    uint8_t newer = 0;  // the clock at the commit that made the row newer than the host's; 0: not
  };
  struct Miss {
    uint32_t position;
    float count;   // the weighted uses
    int distance;  // StagedBatches::Distance
  };
  class Victims;

  static uint64_t Hash(int64_t key) { return HashKey(key, 0xC2B2AE3D27D4EB4FULL); }
  bool lru() const { return options_.policy == Policy::kLru; }
  uint32_t ClassOf(uint32_t slot) const;
  float HeatOf(uint32_t slot) const;
  void SetHeat(uint32_t slot, float heat);
  void Use(uint32_t slot);
  void BeginTake(size_t n);
  void FillQueue();
  void DropPlan();
  // The distance of prefetches of buckets. Slots are prefetched half as far ahead.
  static constexpr size_t kAhead = 32;
  // Calls hit(i, slot) or absent(i, hash) for each key, in order. `sketch`: whether `absent` uses
  // the sketch, so that it should be prefetched.
  template <typename Hit, typename Absent>
  void Search(const int64_t* keys, size_t n, bool sketch, const Hit& hit,
              const Absent& absent) const;
  void ChooseEntering(std::vector<Miss>* misses, Plan* plan);
  void Admit(std::vector<Miss>* misses, Plan* plan);
  bool IsStillNewer(const Newer& newer, size_t i) const;
  StagedBatches::Batch RemoveStaged(std::vector<uint8_t>* counts, int32_t* slots = nullptr);

  const Options options_;
  mutable std::mutex mutex_;
  SlotIndex index_;
  std::vector<Slot> slots_;
  uint32_t used_ = 0;  // slots below this were given to keys
  VictimQueue queue_;
  std::optional<FrequencySketch> sketch_;  // kAdmission
  std::vector<bool> in_take_;              // slots of the planned step's keys, and of its victims
  float weight_ = 1.0f;                    // of a use now: it grows, instead of all heats shrinking
  uint32_t lru_class_ = 1;
  size_t lru_uses_ = 0;  // uses since the class began
  StagedBatches staged_;
  uint64_t plans_ = 0;
  std::vector<uint32_t> planned_;  // slots of the victims of a plan that is not committed
  uint64_t newer_ = 0;
  uint64_t changes_ = 0;
  // Advances at each FindNewer, which separates commits before it from commits after it. When it
  // wraps around, a new era begins, and flushes of the old era find none of their rows.
  uint8_t clock_ = 1;
  uint64_t era_ = 0;
  Counters counters_;
};

template <typename Hit, typename Absent>
void SlotDirectory::Search(const int64_t* keys, size_t n, bool sketch, const Hit& hit,
                           const Absent& absent) const {
  uint64_t hashes[kAhead];
  uint32_t guesses[kAhead];
  const bool staged = staged_.size() != 0;
  for (size_t i = 0; i < n + kAhead; ++i) {
    if (i >= kAhead) {
      const size_t at = i - kAhead;
      const uint64_t hash = hashes[at % kAhead];
      uint32_t slot = guesses[at % kAhead];
      if (slot != SlotIndex::kNone && slots_[slot].key != keys[at]) {
        slot = index_.Find(static_cast<uint32_t>(hash),
                           [&](uint32_t number) { return slots_[number].key == keys[at]; });
      }
      if (slot != SlotIndex::kNone) {
        hit(at, slot);
      } else {
        absent(at, hash);
      }
    }
    if (i < n) {
      hashes[i % kAhead] = Hash(keys[i]);
      index_.Prefetch(static_cast<uint32_t>(hashes[i % kAhead]));
    }
    if (i >= kAhead / 2 && i - kAhead / 2 < n) {
      const size_t at = i - kAhead / 2;
      const uint64_t hash = hashes[at % kAhead];
      const uint32_t guess = index_.Guess(static_cast<uint32_t>(hash));
      guesses[at % kAhead] = guess;
      if (guess != SlotIndex::kNone) {
        __builtin_prefetch(&slots_[guess], 1);
      } else {
        if (sketch) sketch_->Prefetch(hash);
        if (staged) staged_.Prefetch(keys[at]);
      }
    }
  }
}

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_SLOT_DIRECTORY_H_
