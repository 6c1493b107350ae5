// RecordStore: a table's first tier, the rows that are not in memory. A log of records, the index
// that says which of them are live, and the moves of a mutation between the two tiers.
//
// A row is in memory, or here. What is in memory is looked at first, so that a record that has
// entered memory, or is about to leave it, does no harm while it is in the index, too. The order of
// a mutation is therefore:
//
//   Leave      append the rows that go; room in index and moves. All that can fail
//   Declare    write the moves down; index entries of the rows that go
//   ...        the group publishes its mutation, whose state has the moves' number; or undoes it
//   Finish     take away the entries of the rows that came; or of those that did not go
//
// A kill at any instruction leaves what the next Open finishes or takes back.
//
// Any process reads. One thread of the writer's process moves rows; another may compact meanwhile.
#ifndef TFSPS_CORE_TIER_RECORD_STORE_H_
#define TFSPS_CORE_TIER_RECORD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tier/io_threads.h"
#include "core/tier/record_index.h"
#include "core/tier/record_log.h"
#include "core/tier/record_moves.h"

namespace tsps {

class RecordStore {
 public:
  // `shared`: the table's folder in shared memory; `disk`: the log's. Both are there, and empty of
  // its files.
  static Result<std::unique_ptr<RecordStore>> Create(const std::string& shared,
                                                     const std::string& disk, RecordLayout layout,
                                                     uint64_t seed, IoThreads& threads);
  // To read. DataLoss, naming the file, for what is another table's or damaged.
  static Result<std::unique_ptr<RecordStore>> Open(const std::string& shared,
                                                   const std::string& disk, RecordLayout layout,
                                                   uint64_t seed, IoThreads& threads);
  // To write, too, alone. `committed`: the number of the last moves in the group's committed state.
  Status MakeWritable(uint32_t committed);

  // Where keys have records. Of `places` there is one per key, kNoRecord without a record.
  // visit(i, payload) is called on many threads, for the keys that have one.
  using Visit = std::function<void(size_t i, const char* payload)>;
  Status Read(const int64_t* keys, size_t n, bool urgent, uint32_t* places, const Visit& visit);

  // --- Writer only. ---
  // Of a mutation: rows that come, of which Read has told the places, and n rows that go, of which
  // fill tells payload and key. ResourceExhausted and others: nothing has changed.
  struct Entering {
    const int64_t* keys;
    const uint32_t* places;
    size_t n;
  };
  Status Leave(const Entering& entering, size_t n, const RecordLog::Fill& fill);
  // After a Leave that went well: perhaps Declare, and Finish in any case.
  void Declare();
  void Finish(bool published);

  // Number of the next moves: in the state that their mutation publishes.
  uint32_t next_number() const { return committed_ + 1; }
  uint64_t rows() const { return index_->live(); }
  // Of the log's files, and what live records need of them.
  uint64_t log_bytes() const { return log_->bytes(); }
  uint64_t live_bytes() const;
  size_t index_bytes() const { return index_->bytes(); }
  RecordLog::Counters counters() const { return log_->counters(); }

  // Copies live records out of the file that has the most dead ones, at most `bytes` of it are
  // looked at, and removes the file when none is left. False: the log is not long enough for that
  // to pay, or there is no such file. An error leaves everything as it was.
  Result<bool> CompactSome(size_t bytes);

 private:
  RecordStore(std::unique_ptr<RecordLog> log, std::unique_ptr<RecordIndex> index)
      : log_(std::move(log)), index_(std::move(index)) {}
  // A key of which a record is looked for: candidate number `candidate` of those its tag has.
  struct Wanted {
    size_t i;
    size_t candidate = 0;
    uint32_t place = kNoRecord;
  };
  // Leaves out those that have no such candidate.
  Status FindCandidates(const int64_t* keys, std::vector<Wanted>* wanted) const;
  // Reads them; those whose record is of another key are left, to be looked for further.
  Status ReadCandidates(const int64_t* keys, bool urgent, std::vector<Wanted>* wanted,
                        uint32_t* places, const Visit& visit);
  Result<uint32_t> PlaceNow(int64_t key, uint64_t tag, uint32_t place);
  Status CountLive();
  void Enter(uint64_t tag, uint32_t place);
  void Drop(uint64_t tag, uint32_t place);
  uint32_t FileToCompact() const;

  std::string shared_;
  const std::unique_ptr<RecordLog> log_;
  const std::unique_ptr<RecordIndex> index_;
  std::unique_ptr<RecordMoves> moves_;

  // --- Writer. ---
  uint32_t committed_ = 0;
  std::vector<RecordMove> entering_, leaving_;
  // Of the index's entries, the log's end, and what follows. Held from Leave to Finish.
  mutable std::mutex mutex_;
  std::unique_lock<std::mutex> moving_;
  std::vector<uint32_t> live_;  // records of each file
  struct {
    uint32_t file = UINT32_MAX;
    uint32_t slot = 0;
  } compaction_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_STORE_H_
