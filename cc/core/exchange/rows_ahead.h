// RowsAhead: what a rank knows of a sharded table before a batch needs it.
//
//   announced batches      keys of coming batches, from datasets
//   rows ahead             rows of the next batch that have come while the batch before it trained
//   keys of this step      whose rows the step that is being made may change
//
// A row that an owner sends during a step is used in the next one. It is the right one then, for an
// owner sends none that the step may change: none of a key that a rank has looked up since the last
// step of the table. Those travel when they are needed. So nothing that trains depends on what was
// announced, and nothing has to be taken back after an early break, an exception, or with two
// iterators at once.
//
// Caveats, first:
// - A gradient of a key that was looked up before the last step (of a tape that is older) may
//   change a row that has been sent. Whoever makes steps asks LookedUp first.
// - Other writes of a table (assign, erase) change the version of the group: rows ahead are
// dropped.
#ifndef TFSPS_CORE_EXCHANGE_ROWS_AHEAD_H_
#define TFSPS_CORE_EXCHANGE_ROWS_AHEAD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <vector>

#include "core/gradients/key_set.h"

namespace tsps {

// Thread-safe.
class RowsAhead {
 public:
  struct Counters {
    uint64_t announced = 0;  // batches
    uint64_t dropped = 0;    // of them, those that no step came to
    uint64_t looked_up = 0;  // keys of other nodes
    uint64_t ahead = 0;      // of them, those whose rows were there
    uint64_t fetched = 0;    // rows, ahead
  };

  // --- Of datasets. ---
  // A coming batch looks these keys up. Batches are announced two passes of `pass` batches ahead;
  // earlier ones are dropped. `index` 0 begins an iterator: what the one before it has announced is
  // dropped.
  void Announce(int64_t dataset, int64_t index, size_t pass, std::vector<int64_t> keys);
  // Whether there are batches that no step has come to.
  bool Announced() const;

  // --- Of this rank's look-ups. ---
  // They look up these unique keys. `known`: all ranks note what they look up. Rows that came
  // beside a step that was not made are dropped.
  void LookUp(const int64_t* keys, size_t n, bool known);
  struct Taken {
    std::vector<uint8_t> have;  // a byte for each key: not 0 if its row is here
    std::vector<float> rows;    // float[those, dim]
  };
  // Rows of keys that are there. `version`: of the group.
  Taken Take(const int64_t* keys, size_t n, size_t dim, uint64_t version);
  // Of a look-up: so many of its keys other nodes have.
  void CountLookUps(size_t n);
  // The keys of the batch behind the one that was looked up since the last step, but for those that
  // were looked up, too. None if it is not found among those that were announced.
  std::vector<int64_t> Next();
  // Keys of a pass of coming batches, each once: for their owners, to read rows from disks. Each
  // batch is told once. None while less than a pass is announced, but for the first batches of an
  // iterator.
  std::vector<int64_t> NextPass();
  // Batches of a pass, as of the last Announce; at least 1.
  size_t pass() const;
  // Rows that have come for the next step: those of `keys` that are present.
  void Keep(const std::vector<int64_t>& keys, const std::vector<uint8_t>& present,
            const std::vector<float>& rows, size_t dim, uint64_t version);
  // Whether all that was looked up since the last step is known here.
  bool known() const;
  // Whether this rank has looked all of them up since the last step; if not, `missing` is one.
  bool LookedUp(const int64_t* keys, size_t n, int64_t* missing) const;

  // --- Of an owner. ---
  // Ranks have looked up keys that this node has.
  void LookUpHere(const std::vector<int64_t>& keys);
  // Whether it is certain that the step that is being made leaves these rows alone, a byte for
  // each.
  std::vector<uint8_t> Stays(const std::vector<int64_t>& keys) const;
  // Rows of these were sent ahead: the next step may change them, and nobody need ask for them.
  void Sent(const std::vector<int64_t>& keys);

  // A step of the table is made: rows ahead are for the next one.
  void StepMade();

  Counters counters() const;

 private:
  struct Stream {
    int64_t dataset;
    size_t pass = 1;
    std::deque<std::vector<int64_t>> batches;
    size_t told = 0;  // of them, from the first on: their owners know
  };
  void DropFirst(Stream* stream);

  mutable std::mutex mutex_;
  std::list<Stream> streams_;
  size_t pass_ = 1;
  KeySet looked_up_;           // by this rank, since the last step
  KeySet here_;                // by all ranks, of this node's rows
  std::vector<int64_t> sent_;  // since the last step, ahead of the next one
  bool known_ = true;          // all look-ups since the last step are in here_
  // Rows for the step after the one that is being made, and then for that.
  KeySet ahead_;
  std::vector<float> rows_;
  size_t dim_ = 0;
  uint64_t version_ = 0;
  bool usable_ = false;
  Counters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_ROWS_AHEAD_H_
