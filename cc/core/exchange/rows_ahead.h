// RowsAhead: what a rank knows of a sharded table before a batch needs it.
//
//   announced batches      keys of coming batches, which datasets announce
//   rows ahead             rows of the next batch that arrived while the batch before it trained
//   keys of this step      keys whose rows the current step may change
//
// A row that an owner sends during a step is used in the next one. It is up to date then, because
// an owner sends no row that the step may change: none of a key that a rank has looked up since the
// last step of the table. Those rows are sent when they are needed. So no trained value depends on
// what was announced, and nothing has to be undone after an early break, after an exception, or
// with two iterators at once.
//
// - A gradient of a key that was looked up before the last step (of an older tape) may change a row
//   that was sent. Whoever makes steps calls LookedUp first.
// - Other writes of a table (assign, erase) change the version of the group. Rows ahead are then
//   dropped.
#ifndef TFSPS_CORE_EXCHANGE_ROWS_AHEAD_H_
#define TFSPS_CORE_EXCHANGE_ROWS_AHEAD_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/base/announced_batches.h"
#include "core/gradients/key_numbers.h"

namespace tsps {

// Thread-safe.
class RowsAhead {
 public:
  struct Counters {
    uint64_t announced = 0;  // batches
    uint64_t dropped = 0;    // announced batches that no step used
    uint64_t looked_up = 0;  // keys of other nodes
    uint64_t ahead = 0;      // looked-up keys whose rows had arrived
    uint64_t fetched = 0;    // rows that arrived ahead
  };

  RowsAhead() : streams_(kMostStreams) {}

  // --- Datasets call these. ---
  // A coming batch looks these keys up. Batches are announced two passes of `pass` batches ahead;
  // earlier ones are dropped. Index 0 begins an iterator: the batches of the one before it are
  // dropped.
  void Announce(int64_t dataset, int64_t index, size_t pass, std::vector<int64_t> keys);
  // Whether there are batches that no step has used.
  bool Announced() const;

  // --- Lookups of this rank call these. ---
  // A lookup has these unique keys. `known`: all ranks record the keys of their lookups. Rows that
  // arrived during a step that was not made are dropped.
  void LookUp(const int64_t* keys, size_t n, bool known);
  struct Taken {
    std::vector<uint8_t> have;  // [key]: not 0 if its row is here
    std::vector<float> rows;    // float[rows that are here, dim]
  };
  // Returns the rows of keys that have arrived. `version`: the version of the group.
  Taken Take(const int64_t* keys, size_t n, size_t dim, uint64_t version);
  // Counts `n` keys of other nodes in a lookup.
  void CountLookUps(size_t n);
  // Returns the keys of the batch that follows the batch looked up since the last step, except keys
  // that this one has looked up too. Empty if the batch is not found among those announced.
  std::vector<int64_t> Next();
  // Returns the keys of a pass of coming batches, each key once, so that their owners can read rows
  // from disk. Returns each batch once. Empty while less than a pass is announced, except for the
  // first batches of an iterator.
  std::vector<int64_t> NextPass();
  // Returns the number of batches in a pass, as the last Announce gave it; at least 1.
  size_t pass() const;
  // Keeps rows for the next step: those of `keys` that are present.
  void Keep(const std::vector<int64_t>& keys, const std::vector<uint8_t>& present,
            const std::vector<float>& rows, size_t dim, uint64_t version);
  // Whether all keys that were looked up since the last step are known here.
  bool known() const;
  // Whether this rank has looked up all of these keys since the last step. If not, sets *missing to
  // one that it has not.
  bool LookedUp(const int64_t* keys, size_t n, int64_t* missing) const;

  // --- Owners of rows call these. ---
  // Ranks have looked up these keys of this node.
  void LookUpHere(const std::vector<int64_t>& keys);
  // Returns a byte for each key: not 0 if the current step certainly leaves its row unchanged.
  std::vector<uint8_t> Stays(const std::vector<int64_t>& keys) const;
  // Rows of these keys were sent ahead. The next step may change them, although no rank asks for
  // them.
  void Sent(const std::vector<int64_t>& keys);

  // A step of the table was made: rows ahead are for the next one.
  void StepMade();

  Counters counters() const;

 private:
  static constexpr size_t kMostStreams = 16;  // datasets that are remembered without a batch
  struct Stream {
    int64_t dataset;
    size_t pass = 1;
    AnnouncedBatches<std::vector<int64_t>> batches = {};
    size_t n_passed = 0;  // the first batches, which NextPass has returned
  };
  void DropFirst(Stream& stream, size_t n);
  bool IsLookedUp(const std::vector<int64_t>& batch) const;

  mutable std::mutex mutex_;
  AnnouncedStreams<Stream> streams_;
  size_t pass_ = 1;
  KeyNumbers looked_up_;       // by this rank, since the last step
  KeyNumbers here_;            // keys of this node, which any rank has looked up
  std::vector<int64_t> sent_;  // since the last step, for the next one
  bool known_ = true;          // here_ has all lookups since the last step
  // Rows for the step after the current one, and then for that.
  KeyNumbers ahead_;
  std::vector<float> rows_;
  size_t dim_ = 0;
  uint64_t version_ = 0;
  bool usable_ = false;
  Counters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_ROWS_AHEAD_H_
