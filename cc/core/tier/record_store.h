// RecordStore: a table's first tier, the rows that are not in memory. A log of records, the index
// that says which of them are live, and the moves of a mutation between the two tiers.
//
// A row is in memory, or here. What is in memory is looked at first, so that a record that has
// entered memory, or is about to leave it, does no harm while it is in the index, too. The order of
// a mutation is therefore:
//
//   Leave      append the rows that go; room in index and moves. All that can fail
//   ...        the group begins its mutation
//   Declare    write the moves down; index entries of the rows that go
//   ...        the group publishes its mutation, whose state has the moves' number; or undoes it
//   Finish     take away the entries of the rows that came; or of those that did not go
//
// Records that compaction copies move in the same way, from log to log. A kill at any instruction
// leaves what the next MakeWritable finishes or takes back. So what a committed state has is known
// by its number: RecordScan (record_scan.h) reads it for as long as it takes.
//
// Any process reads; one thread of the writer's process moves rows.
#ifndef TFSPS_CORE_TIER_RECORD_STORE_H_
#define TFSPS_CORE_TIER_RECORD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tier/announced_rows.h"
#include "core/tier/compaction.h"
#include "core/tier/io_threads.h"
#include "core/tier/record_index.h"
#include "core/tier/record_log.h"
#include "core/tier/record_moves.h"

namespace tsps {

class RecordStore {
 public:
  struct Memory {
    size_t cache_bytes = 0;  // for records that were read (record_cache.h)
    size_t rows = 0;         // that the table has room for (announced_rows.h)
  };
  // `shared`: the table's folder in shared memory; `disk`: the log's. Both are there, and empty of
  // its files.
  static Result<std::unique_ptr<RecordStore>> Create(const std::string& shared,
                                                     const std::string& disk, RecordLayout layout,
                                                     uint64_t seed, const Memory& memory,
                                                     IoThreads& threads);
  // To read. DataLoss, naming the file, for what is another table's or damaged.
  static Result<std::unique_ptr<RecordStore>> Open(const std::string& shared,
                                                   const std::string& disk, RecordLayout layout,
                                                   uint64_t seed, const Memory& memory,
                                                   IoThreads& threads);
  // To write, too, alone. `committed`: the number of the last moves in the group's committed state.
  Status MakeWritable(uint32_t committed);

  // Where keys have records. Of `places` there is one per key, kNoRecord without a record.
  // visit(i, payload) is called on many threads, for the keys that have one.
  using Visit = std::function<void(size_t i, const char* payload)>;
  Status Read(const int64_t* keys, size_t n, bool urgent, uint32_t* places, const Visit& visit);
  // The same where a Read has told the places of these keys, in the committed state that still is
  // the last one: the index is looked at for those only that compaction has moved since.
  Status ReadAgain(const int64_t* keys, size_t n, bool urgent, uint32_t* places,
                   const Visit& visit);
  // Reads records of keys into the cache, for whoever needs them next; perhaps some of other keys.
  Status Stage(const int64_t* keys, size_t n);
  AnnouncedRows& announced() const { return *announced_; }
  // How many rows a committed state has here. False: it is not the last one any more.
  Result<bool> RowsOf(uint32_t committed, uint64_t* rows) const;

  // --- Writer only. ---
  // Of a mutation: rows that come, of which Read has told the places, and n rows that go, of which
  // fill tells payload and key. ResourceExhausted and others: nothing has changed.
  struct Entering {
    const int64_t* keys;
    const uint32_t* places;
    size_t n;
  };
  Status Leave(const Entering& entering, size_t n, const RecordLog::Fill& fill);
  // The moves of a Leave that went well, those of compaction included.
  const std::vector<RecordMove>& entering() const { return entering_; }
  // After a Leave that went well: perhaps Declare, and Finish in any case. Neither asks for memory.
  void Declare();
  void Finish(bool published);
  // Removes files that have no live records. Not while a scan is under way, which may need them.
  void RemoveEmptied();
  // Begins to read what the next Leave copies, if the log has become long enough for that to pay.
  void CompactAhead(size_t bytes) { compaction_.ReadAhead(bytes, live_); }
  // Waits for it.
  void AwaitCompaction() { compaction_.Await(); }

  // Number of the next moves: in the state that their mutation publishes.
  uint32_t next_number() const { return committed_ + 1; }
  uint64_t rows() const { return index_->live(); }
  // Bytes of the log's files.
  uint64_t log_bytes() const { return log_->bytes(); }
  size_t record_bytes() const { return log_->layout().record_bytes; }
  // What of it is large, in memory that all processes share.
  std::vector<MappedFile*> LargeFiles() const;
  // Of memory that all processes share.
  size_t memory_bytes() const {
    return index_->bytes() + log_->cache_bytes() + announced_->bytes();
  }
  size_t cached_records() const { return log_->cached_records(); }  // at most
  RecordLog::Counters counters() const { return log_->counters(); }
  const std::string& disk() const { return log_->folder(); }

 private:
  friend class RecordScan;
  RecordStore(std::unique_ptr<RecordLog> log, std::unique_ptr<RecordIndex> index)
      : log_(std::move(log)), index_(std::move(index)), compaction_(*log_, *index_) {}
  // A key of which a record is looked for: candidate number `candidate` of those its tag has.
  struct Wanted {
    size_t i;
    size_t candidate = 0;
    uint32_t place = kNoRecord;
  };
  // Until none is left.
  Status ReadWanted(const int64_t* keys, bool urgent, std::vector<Wanted> wanted, uint32_t* places,
                    const Visit& visit);
  // Leaves out those that have no such candidate.
  Status FindCandidates(const int64_t* keys, std::vector<Wanted>* wanted) const;
  // Reads them; those whose record is of another key are left, to be looked for further.
  Status ReadCandidates(const int64_t* keys, bool urgent, std::vector<Wanted>* wanted,
                        uint32_t* places, const Visit& visit);
  Result<uint32_t> PlaceNow(int64_t key, uint64_t tag, uint32_t place);
  Status CountLive();
  void Enter(uint64_t tag, uint32_t place);
  void Drop(uint64_t tag, uint32_t place);
  // Of compaction's slice, the records that are live and stay.
  void ChooseCopies();
  void MoveCached();
  Status Append(size_t n, const RecordLog::Fill& fill);

  std::string shared_;
  const std::unique_ptr<RecordLog> log_;
  const std::unique_ptr<RecordIndex> index_;
  std::unique_ptr<RecordMoves> moves_;
  std::unique_ptr<AnnouncedRows> announced_;

  // --- Writer. ---
  uint32_t committed_ = 0;
  uint32_t last_ = kNoRecord;  // RecordState
  std::vector<RecordMove> entering_, leaving_;
  std::vector<const Compaction::Slice::Copy*> copies_;
  const Compaction::Slice* slice_ = nullptr;  // of which these are
  std::vector<uint32_t> live_;                // records of each file
  std::vector<uint32_t> emptied_;             // files to be removed, unless they are filled again
  Compaction compaction_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_STORE_H_
