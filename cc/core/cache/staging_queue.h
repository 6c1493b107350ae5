// StagingQueue: the lookups that a dataset has announced for coming steps, and whether their rows
// have reached the device.
//
//   Add    called in the dataset, with the ids of a batch. It decides nothing and waits for nobody
//   Next   called by the copier, a thread of its own: which rows to copy to the device now, and
//          which copies nobody will take
//   Take   called in the forward pass: the lookup that was announced for these ids, and which of
//   the
//          copied rows are still equal to the host's
//
// Take finds a lookup by its ids. A lookup of ids that were not announced gets nothing, and no
// lookup gets a row that was written since its announcement. So announcements change no number.
#ifndef TFSPS_CORE_CACHE_STAGING_QUEUE_H_
#define TFSPS_CORE_CACHE_STAGING_QUEUE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/announced_batches.h"
#include "core/base/status.h"
#include "core/cache/slot_directory.h"

namespace tsps {

// The ids of one table in one call of a layer.
struct StagedLookup {
  explicit StagedLookup(std::vector<int64_t> ids);

  std::vector<int64_t> ids;      // ids of all features, one after another
  std::vector<int64_t> keys;     // unique, in order of first occurrence
  std::vector<int32_t> inverse;  // [id]: the position of its key
  std::vector<uint32_t> copied;  // positions in `keys` of the rows that are copied ahead

  // Returns a hash of ids. Equal ids have equal hashes; Take compares the ids themselves.
  static uint64_t Fingerprint(const int64_t* ids, size_t n);
};

// The queue of one table. Thread-safe.
class StagingQueue {
 public:
  // The directory must outlive this.
  explicit StagingQueue(SlotDirectory* directory) : directory_(*directory) {}

  // The largest number of batches that wait; the oldest is dropped when another is added.
  static constexpr size_t kMost = StagedBatches::kMost;

  // --- The dataset calls this. ---
  // Adds the lookups of a batch. `index`: its number in an iterator; 0 begins an iterator, and
  // drops the batches of the one before it.
  void Add(int64_t index, std::vector<StagedLookup> lookups);

  // --- The copier calls these. ---
  struct Work {
    bool closed = false;
    int64_t copy = 0;                            // the copy's number; 0: there is nothing to copy
    std::shared_ptr<const StagedLookup> lookup;  // its rows are to be copied
    uint64_t step = 0;                           // the rows must be of this step, or a later one
    std::vector<int64_t> removed;                // copies that were made and will not be taken
    // Set once: the announced lookups are not those that training makes.
    bool astray = false;
  };
  // Blocks until there is something to do. `copied`: the copy that was made since; 0: none.
  Work Next(int64_t copied);
  // Reports that the rows cannot be read. The lookup then reads them itself, and reports the
  // reason.
  void Fail(int64_t copy);
  // Whether a lookup may still take this copy.
  bool Wanted(int64_t copy) const;
  void Close();

  // --- Training calls these. ---
  struct Taken {
    std::shared_ptr<const StagedLookup> lookup;  // null: these ids were not announced
    int64_t copy = 0;  // the copied rows that are taken with it; 0: none were
    // For each of its keys: its slot, or kNoSlot if the row is not on the device; then the row's
    // position in the copy, or -1.
    std::vector<int32_t> slots, positions;
  };
  // Whether Take would wait for the copier.
  bool WouldWait(const int64_t* ids, size_t n) const;
  Taken Take(const int64_t* ids, size_t n);
  // Runs `commit`, which commits a step to the directory, with no Take in between. `step`: the step
  // that the host has reached when the step can be read.
  Status Commit(uint64_t step, const std::function<Status()>& commit);
  // Clears the directory, because others wrote the host's rows, which may be of any step.
  void Clear();

  // Returns the number of batches that were not taken.
  size_t size() const;
  struct Counters {
    uint64_t announced = 0;    // lookups
    uint64_t taken = 0;        // announced lookups that were taken
    uint64_t dropped = 0;      // announced lookups that were dropped
    uint64_t rows_copied = 0;  // to the device
    uint64_t rows_used = 0;    // copied rows that were used
    uint64_t waited_ns = 0;    // time for which training waited for the copier
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
    // [key]: its position among the keys of the batch. Empty if the batch has no other lookup.
    std::vector<int32_t> in_batch;
  };
  struct Batch {
    uint64_t number = 0;
    uint64_t step = 0;
    bool matched = false;
    uint64_t changes = 0;         // changes_ when it was matched
    std::vector<uint8_t> counts;  // [key]: whether the copied row is equal to the host's
    std::vector<Entry> entries;
  };

  // All of these are called with mutex_ locked.
  Entry* Find(uint64_t fingerprint, const int64_t* ids, size_t n, Batch** batch);
  Entry* FindCopy(int64_t copy);
  void Drop(const Batch& batch);
  // Drops the first batch, which training or the dataset has passed over.
  void PassOverFirst();
  // Matches the batch, if it is not matched yet, and then returns the slots of its keys.
  std::vector<int32_t> Match(Batch* batch);
  // Returns the first entry that waits for the copier, and sets its batch; or null.
  Entry* FirstWaiting(Batch** batch);

  SlotDirectory& directory_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  AnnouncedBatches<Batch> batches_;
  std::vector<int64_t> removed_;
  uint64_t step_ = 0, changes_ = 0, next_batch_ = 0;
  int64_t next_copy_ = 0;
  bool closed_ = false;
  uint64_t passed_over_ = 0;    // batches that were dropped although they were never matched
  uint64_t steps_without_ = 0;  // steps since a lookup was taken
  bool astray_ = false, astray_reported_ = false;
  Counters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_STAGING_QUEUE_H_
