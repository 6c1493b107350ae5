// StagingQueue: the look-ups that a dataset has announced for coming steps, and how far their rows
// are on the way to the device.
//
//   Add    in the dataset: the ids of a batch. Decides nothing, waits for nobody
//   Next   by the copier, a thread beside training: which rows to copy to the device now, or which
//          copies nobody will take
//   Take   in the forward pass: what was announced for these ids, and which of the rows that were
//          copied are those that the host has now
//
// Take finds a look-up by its ids. Whatever a dataset announces, a look-up of other ids gets
// nothing, and none gets a row that was written since it was announced: looking ahead changes no
// number.
#ifndef TFSPS_CORE_CACHE_STAGING_QUEUE_H_
#define TFSPS_CORE_CACHE_STAGING_QUEUE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "core/cache/slot_directory.h"

namespace tsps {

// Of one table's ids in one call of a layer.
struct StagedLookup {
  explicit StagedLookup(std::vector<int64_t> ids);

  std::vector<int64_t> ids;      // of all features, one after another
  std::vector<int64_t> keys;     // unique, in order of first occurrence
  std::vector<int32_t> inverse;  // of each id, the position of its key
  std::vector<uint32_t> copied;  // positions in `keys` of the rows that are read ahead

  // Tells ids from others; that they are the same is for Take to see.
  static uint64_t Fingerprint(const int64_t* ids, size_t n);
};

class StagingQueue {
 public:
  // Of one table. The directory outlives this.
  explicit StagingQueue(SlotDirectory* directory) : directory_(*directory) {}

  // At most so many batches wait; of more the oldest is dropped.
  static constexpr size_t kMost = StagedBatches::kMost;

  // --- In the dataset. ---
  // A batch's look-ups. `index`: its number in an iterator; 0 begins one, and drops what was
  // announced before.
  void Add(int64_t index, std::vector<StagedLookup> lookups);

  // --- By the copier. ---
  struct Work {
    bool closed = false;
    int64_t copy = 0;                            // its number; 0: there is nothing to copy
    std::shared_ptr<const StagedLookup> lookup;  // whose rows
    uint64_t step = 0;                           // of this step, or a later one
    std::vector<int64_t> removed;                // copies that were made and will not be taken
    // Said once: what is announced is not what is looked up.
    bool astray = false;
  };
  // Blocks until there is something to do. `copied`: the copy that was made since; 0: none.
  Work Next(int64_t copied);
  // The rows cannot be read: look-ups read them, and say why.
  void Fail(int64_t copy);
  // Whether a look-up may take this copy yet.
  bool Wanted(int64_t copy) const;
  void Close();

  // --- In training. ---
  struct Taken {
    std::shared_ptr<const StagedLookup> lookup;  // null: these ids were not announced
    int64_t copy = 0;  // the copied rows that are taken with it; 0: none were
    // Of each of its keys. kNoSlot: not on the device; then its position in the copy, or -1.
    std::vector<int32_t> slots, positions;
  };
  // Whether Take would wait for the copier.
  bool WouldWait(const int64_t* ids, size_t n) const;
  Taken Take(const int64_t* ids, size_t n);
  // Runs `commit`, which makes a step the directory's, with no Take in between. The host will be at
  // `step`, when the step is there to be read.
  Status Commit(uint64_t step, const std::function<Status()>& commit);
  // The directory is cleared: the host's rows were written by others, and may be of any step.
  void Clear();

  // That have not been taken.
  size_t size() const;
  struct Counters {
    uint64_t announced = 0;    // look-ups
    uint64_t taken = 0;        // of them
    uint64_t dropped = 0;      // of them
    uint64_t rows_copied = 0;  // to the device
    uint64_t rows_used = 0;    // of them
    uint64_t waited_ns = 0;    // by training, for the copier
  };
  Counters counters() const;

 private:
  enum class State { kNothing, kWaiting, kCopying, kCopied, kTaken };
  struct Entry {
    bool IsOf(const int64_t* ids, size_t n) const;

    uint64_t fingerprint = 0;
    int64_t copy = 0;
    State state = State::kNothing;
    std::shared_ptr<const StagedLookup> lookup;
    std::vector<int32_t> in_batch;  // of each key, its position in the batch's; empty: its own
  };
  struct Batch {
    uint64_t number = 0;
    uint64_t step = 0;
    bool matched = false;
    uint64_t changes = 0;         // when it was matched
    std::vector<uint8_t> counts;  // of each of its keys, whether the row that was read counts
    std::vector<Entry> entries;
  };

  // All under mutex_.
  Entry* Find(uint64_t fingerprint, const int64_t* ids, size_t n, Batch** batch);
  Entry* FindCopy(int64_t copy);
  void DropFirst();
  void PassOverFirst();
  // Returns the slots of its keys, if it is matched now.
  std::vector<int32_t> Match(Batch* batch);

  SlotDirectory& directory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  std::vector<int64_t> removed_;
  uint64_t step_ = 0, changes_ = 0, next_batch_ = 0;
  int64_t next_copy_ = 0;
  bool closed_ = false;
  uint64_t passed_over_ = 0, steps_without_ = 0;  // look-ups that others went past; since one was
  bool astray_ = false, said_ = false;            // taken
  Counters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_STAGING_QUEUE_H_
