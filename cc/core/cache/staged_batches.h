// StagedBatches: batches whose keys are known before they are taken, and what of their rows that
// were read from the host ahead still counts.
//
// A batch has one of 16 bits while it is staged; a key's mask has the bits of the batches that need
// it. Masks of keys with a slot are kept by the slot (SlotDirectory), those of others here, with
// the number of the last write of the row on the host. A row that was read for a batch counts if it
// was not written since the batch was staged: the reading comes later, so a write that it has seen
// may be taken for one that it has not, never the reverse.
#ifndef TFSPS_CORE_CACHE_STAGED_BATCHES_H_
#define TFSPS_CORE_CACHE_STAGED_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "core/cache/waiting_keys.h"

namespace tsps {

class StagedBatches {
 public:
  static constexpr size_t kMost = 15;  // batches at once: a bit stays free for the one being taken

  struct Batch {
    uint64_t fingerprint = 0;
    uint32_t number = 0;
    uint64_t written = 0;         // writes of the host when it was staged
    std::vector<int64_t> keys;    // unique
    std::vector<uint8_t> absent;  // of each key: it had no slot
  };

  size_t size() const { return batches_.size(); }
  // The first batch with this fingerprint, from 0; size() if there is none.
  size_t IndexOf(uint64_t fingerprint) const;
  // The number of the next batch that is staged.
  uint32_t next_number() const { return next_; }
  void Add(Batch batch);
  const Batch& front() const { return batches_.front(); }
  Batch RemoveFirst();

  // How many batches ahead the next one is that needs a key with this mask: 1 for the first of
  // those that are staged; kNever if none is.
  static constexpr int kNever = 255;
  int Distance(uint16_t mask) const;
  static uint16_t BitOf(uint32_t number) { return static_cast<uint16_t>(1u << (number % 16)); }

  // --- Of keys without a slot. ---
  uint16_t MaskOf(int64_t key) const;
  void Need(int64_t key, uint16_t bit) { waiting_.Put(key).mask |= bit; }
  void Prefetch(int64_t key) const { waiting_.Prefetch(key); }
  void NeedNoMore(int64_t key, uint16_t bit);
  // The key gets a slot, which keeps its mask from here on.
  uint16_t Enter(int64_t key);
  // It loses its slot, with this mask: its row on the host is another one now.
  void Leave(int64_t key, uint16_t mask);
  // Its row on the host is written now.
  void Written(int64_t key);
  // All rows may be.
  void AllWritten() { all_written_ = ++written_; }
  uint64_t written() const { return written_; }
  // Whether what was read for a batch is what the host has.
  bool Counts(const Batch& batch, int64_t key) const;

 private:
  std::deque<Batch> batches_;
  uint32_t next_ = 0;
  WaitingKeys waiting_;
  uint64_t written_ = 0;  // numbers of writes
  uint64_t all_written_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_CACHE_STAGED_BATCHES_H_
