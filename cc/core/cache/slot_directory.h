// SlotDirectory: which rows of a table a device keeps, in which slots. It decides, alone, what
// enters and what leaves; whoever has the rows moves them as it says.
//
// A step of training has three parts:
//
//   Find      in the forward pass: where the rows of its keys are. Changes nothing, so a forward
//             pass may be repeated, or be without an update
//   Plan      when the gradients are there: the slots of the keys, those of missing keys that may
//             enter, and the victims that give them their slots
//   Commit    when the host has what the step leaves there: the rows of victims, and those of keys
//             that have not entered, updated. Until then nothing has moved
//
// A step that fails in between has changed nothing: its plan is dropped when the next one is made.
//
// Rules of order, which whoever moves rows keeps (tests: cc/tests/cache_order_test.cc):
// - A victim's row is read from its slot after its last update, and before the slot is written for
//   the key that enters: slots are written after Commit.
// - Before Commit the host has the rows of victims, and the updates of keys that have no slot.
// - What Match says of rows that were read ahead is obeyed: others are read again.
// - A step is committed before the next one finds its keys, and its rows on the device are written
//   before that one reads them.
//
// Policies:
// - kAdmission: a missing key enters only if it was used more often, old uses counting less and
//   less, than the key that is the first to leave. The others' rows stay on the host, and are
//   updated there.
// - kLru: every key enters; those that were not used for the longest time leave.
// With both, keys that staged batches need stay as long as there are others; of those, the ones
// that are needed last leave first; and with kAdmission a missing key that a staged batch needs
// enters in place of one that none needs.
//
// At most 40 bytes per slot, but for what staged batches need: their keys. Thread-safe.
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
    // Uses per slot after which a use counts 1/e of what it did.
    double memory = 24;
  };
  struct Victim {
    uint32_t slot = 0;
    int64_t key = 0;
    bool newer = false;  // than the host's row is the device's
  };
  struct Plan {
    uint64_t number = 0;
    std::vector<int32_t> slots;      // of each key; kNoSlot: its row is and stays on the host
    std::vector<uint32_t> entering;  // positions in the keys: their rows come from the host
    std::vector<Victim> victims;     // slots of some that enter; the others' were free
    std::vector<float> counts;       // of uses, by their weights, of those that enter
  };
  struct Counters {
    uint64_t takes = 0;        // plans
    uint64_t keys = 0;         // in them
    uint64_t hits = 0;         // that had slots
    uint64_t entered = 0;      // that got one
    uint64_t evicted = 0;      // victims
    uint64_t staged = 0;       // batches
    uint64_t matched = 0;      // of them, that were taken
    uint64_t dropped = 0;      // that were not
    uint64_t staged_rows = 0;  // absent keys of staged batches
    uint64_t staged_used = 0;  // of matched ones, rows that counted
    uint64_t staged_late = 0;  // written since, or in a slot by then
  };

  explicit SlotDirectory(const Options& options);

  uint32_t slots() const { return options_.slots; }
  Policy policy() const { return options_.policy; }
  size_t bytes() const;
  Counters counters() const;

  // The slots of unique keys, or kNoSlot.
  void Find(const int64_t* keys, size_t n, int32_t* slots) const;

  // See above. Of unique keys. Fails if the policy is kLru and there are more keys than slots.
  Result<Plan> MakePlan(const int64_t* keys, size_t n);
  // Fails if another plan was made since.
  Status Commit(const Plan& plan, const int64_t* keys);

  // --- Keys whose rows are newer on the device. A flush copies them to the host beside training:
  // FindNewer, a copy of the rows, StillNewer, a write of those rows on the host, Flushed. No plan
  // may be committed between the last three. ---
  struct Newer {
    uint64_t number = 0;  // of the flush
    std::vector<uint32_t> slots;
    std::vector<int64_t> keys;
  };
  Newer FindNewer();
  size_t newer() const;
  // Positions of the keys whose rows are as they were at FindNewer, and newer than the host's. A
  // plan that was committed since has trained the others or taken their slots, or another flush
  // has written them: what was copied of them must not be written to the host.
  std::vector<uint32_t> StillNewer(const Newer& found) const;
  // The host has the rows that StillNewer names.
  void Flushed(const Newer& found);
  // The host's rows were written by others: all slots are free, and no row that was read ahead
  // counts. Rows that were newer on the device are lost: they were flushed before, or are not
  // wanted.
  void Clear();

  // --- Batches that are known ahead. ---
  // A batch will be taken. Returns, for each of its unique keys, not 0 if its row should be read
  // ahead, after this call. Of more than StagedBatches::kMost the first is dropped.
  std::vector<uint8_t> Stage(uint64_t fingerprint, const int64_t* keys, size_t n);
  // The batch with this fingerprint is taken now; those staged before it are dropped. Returns, for
  // each of its keys, not 0 if the row that was read ahead is the one to use, and writes their
  // slots to `slots`, if given; nullopt if there is no such batch.
  std::optional<std::vector<uint8_t>> Match(uint64_t fingerprint,
                                            std::vector<int32_t>* slots = nullptr);
  void DropStaged();

 private:
  struct Slot {
    int64_t key = 0;
    uint32_t heat = 0;  // kAdmission: a float, uses by their weights; kLru: its class
    uint16_t mask = 0;  // of the staged batches that need it
    uint8_t newer = 0;  // not 0: than the host's row, since a commit at this time of the clock
  };
  struct Miss {
    uint32_t position;
    float count;  // of uses, by their weights
    int distance;
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
  // Keys looked ahead: their buckets, and then, half as far, their slots.
  static constexpr size_t kAhead = 32;
  // Calls hit(i, slot) or absent(i, hash) for each key, in their order. `sketch`: it will be asked
  // for those that are absent.
  template <typename Hit, typename Absent>
  void Search(const int64_t* keys, size_t n, bool sketch, const Hit& hit,
              const Absent& absent) const;
  void ChooseEntering(std::vector<Miss>* misses, Plan* plan);
  void Admit(std::vector<Miss>* misses, Plan* plan);
  bool IsStillNewer(const Newer& found, size_t i) const;
  StagedBatches::Batch RemoveStaged(std::vector<uint8_t>* counts, int32_t* slots = nullptr);

  const Options options_;
  mutable std::mutex mutex_;
  SlotIndex index_;
  std::vector<Slot> slots_;
  uint32_t used_ = 0;  // slots from 0 that were given to keys
  VictimQueue queue_;
  std::optional<FrequencySketch> sketch_;  // kAdmission
  std::vector<bool> in_take_;              // slots of the take's keys, and of its victims
  float weight_ = 1.0f;                    // of a use now, in place of making all others less
  uint32_t lru_class_ = 1;
  size_t lru_uses_ = 0;  // since the class began
  StagedBatches staged_;
  uint64_t plans_ = 0;
  std::vector<uint32_t> planned_;  // slots of the victims of a plan that is not committed
  uint64_t newer_ = 0;
  // Moves on at each FindNewer, so that commits before it are told from those after it. When it
  // comes round, a new era begins, and flushes of the one before find none of their rows.
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
                           [&](uint32_t one) { return slots_[one].key == keys[at]; });
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
