// RecordStore: the rows of a table that are on disk. It consists of a log of records, an index of
// the live records, and the moves of a mutation between memory and disk.
//
// A row is in memory or in the store. Readers look in memory first, so an index entry of a row that
// has just entered memory, or is about to leave it, does no harm. A mutation has this order:
//
//   Leave      appends the rows that leave memory, and reserves space in index and moves. Only this
//              part can fail
//   ...        the group begins its mutation
//   Declare    writes the moves, and the index entries of the rows that leave memory
//   ...        the group publishes its mutation, whose state has the number of the moves; or it
//              undoes the mutation
//   Finish     removes the entries of rows that entered memory; or, after an undo, of those that
//              were to leave
//
// After a kill at any instruction, the next MakeWritable completes the moves or takes them back.
// The number of a committed state therefore identifies its records, and RecordScan (record_scan.h)
// can read them while later states are committed.
//
// Compaction copies records from file to file. PlaceCopies makes entries name the copies, which
// changes no row.
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
    size_t cache_bytes = 0;  // for copies of records that were read (record_cache.h)
    size_t rows = 0;         // the table's capacity in memory (announced_rows.h)
  };
  // Creates an empty store. `shared` is the table's folder in shared memory, `disk` the folder of
  // the log. Both must exist, and contain no files of a store.
  static Result<std::unique_ptr<RecordStore>> Create(const std::string& shared,
                                                     const std::string& disk, RecordLayout layout,
                                                     uint64_t seed, const Memory& memory,
                                                     IoThreads& threads);
  // Opens a store to read. DataLoss, naming the file: it is damaged or belongs to another table.
  static Result<std::unique_ptr<RecordStore>> Open(const std::string& shared,
                                                   const std::string& disk, RecordLayout layout,
                                                   uint64_t seed, const Memory& memory,
                                                   IoThreads& threads);
  // Makes this process the only writer. `committed` is the number of the last moves in the group's
  // committed state.
  Status MakeWritable(uint32_t committed);

  // Reads the records of keys. Calls visit(i, payload), on many threads, for each key that has one,
  // and stores its place in places[i]; kNoRecord for a key without a record.
  using Visit = std::function<void(size_t i, const char* payload)>;
  Status Read(const int64_t* keys, size_t n, bool urgent, uint32_t* places, const Visit& visit);
  // Does the same for a reader of a committed state, whose number of moves is `committed`. Rows
  // that this state has removed are absent, although their entries may still be in the index.
  Status ReadCommitted(uint32_t committed, const int64_t* keys, size_t n, bool urgent,
                       uint32_t* places, const Visit& visit);
  // Does the same after a Read of these keys that filled `places`, if the committed state is still
  // the same. Searches the index only for records that compaction has moved since.
  Status ReadAgain(const int64_t* keys, size_t n, bool urgent, uint32_t* places,
                   const Visit& visit);
  // Reads the records of keys, and perhaps a few others, into the cache.
  Status Stage(const int64_t* keys, size_t n);
  AnnouncedRows& announced() const { return *announced_; }
  // Reads how many rows the last committed state has in the store. Returns false if `committed` is
  // not the last state any more.
  Result<bool> RowsOf(uint32_t committed, uint64_t* rows) const;

  // --- Writer only. ---
  // The first part of a mutation. `entering` are the rows that move into memory, with places from
  // Read. n rows leave memory; `fill` writes their payloads and returns their keys. After an error
  // nothing has changed.
  struct Entering {
    const int64_t* keys;
    const uint32_t* places;
    size_t n;
  };
  Status Leave(const Entering& entering, size_t n, const RecordAppender::Fill& fill);
  // Returns the entries that a successful Leave will remove.
  const std::vector<RecordMove>& entering() const { return entering_; }
  // After a successful Leave the caller may call Declare, and must call Finish. Neither allocates.
  void Declare();
  void Finish(bool published);
  // Makes entries name the copies that compaction has written, as many as rows move in this
  // mutation, and others for at most a millisecond. After Declare or PrepareCopies, before the
  // mutation is published, so that no scan begins meanwhile. Not allowed during a scan, and not
  // while another mutation holds places. Allocates nothing.
  void PlaceCopies();
  // Prepares PlaceCopies in a mutation that moves no rows, in place of Leave.
  void PrepareCopies();
  bool HasCopies() const { return compaction_ != nullptr && compaction_->HasQueued(); }
  // Removes files without live records. Not allowed during a scan, which may need them.
  void RemoveEmptied();
  // Allows compaction, which runs beside the caller, to read this many bytes more.
  void CompactAhead(size_t bytes);
  // Waits until it has done so.
  void AwaitCompaction() { compaction_->Await(); }
  // Returns the error of compaction's last work, which it tries again.
  const Status& compaction_status() const { return compaction_->status(); }

  // Visits the rows in the store whose keys have the hashes `begin` to `begin + span`, modulo 2^64.
  // Reads no record. Only if the layout has uses; not while rows move. DataLoss: the index is
  // damaged.
  using VisitUse = std::function<void(uint64_t hash, uint32_t place, const RecordUse& use)>;
  Status ForEachUse(uint64_t begin, uint64_t span, const VisitUse& visit) const;

  // Returns the number of the next moves, which the state of their mutation publishes.
  uint32_t next_number() const { return state_.number + 1; }
  uint64_t rows() const { return index_->live(); }
  // Returns the bytes of the log's files. Any process may ask.
  uint64_t log_bytes() const { return log_->bytes(); }
  size_t record_bytes() const { return log_->layout().record_bytes; }
  // Returns the large ones of the store's files in shared memory.
  std::vector<MappedFile*> LargeFiles() const;
  // Returns the bytes of the store's shared memory.
  size_t memory_bytes() const {
    return index_->bytes() + log_->cache_bytes() + announced_->bytes();
  }
  size_t cached_records() const { return log_->cached_records(); }  // the capacity of the cache
  RecordLog::Counters counters() const { return log_->counters(); }

 private:
  friend class RecordScan;
  RecordStore(std::unique_ptr<RecordLog> log, std::unique_ptr<RecordIndex> index,
              IoThreads& threads)
      : threads_(threads), log_(std::move(log)), index_(std::move(index)) {}
  void MakeWriter();
  // A key whose record is not found yet. `candidate` counts the places of its tag that were tried.
  struct Wanted {
    size_t i;
    size_t candidate = 0;
    uint32_t place = kNoRecord;
  };
  // Reads the records of all wanted keys.
  Status ReadWanted(const int64_t* keys, bool urgent, std::vector<Wanted> wanted, uint32_t* places,
                    const Visit& visit);
  // Finds the place of each key's candidate. Removes keys without further candidates.
  Status FindCandidates(const int64_t* keys, std::vector<Wanted>* wanted) const;
  // Reads the candidates. Keeps in `wanted` the keys whose candidate is the record of another key.
  Status ReadCandidates(const int64_t* keys, bool urgent, std::vector<Wanted>* wanted,
                        uint32_t* places, const Visit& visit);
  // Returns where a key's record is that was at `place`: compaction may have copied it since.
  Result<uint32_t> PlaceNow(int64_t key, uint64_t tag, uint32_t place);
  Status CountLive();
  void SortEnteringPlaces();
  void Enter(uint64_t tag, uint32_t place, const RecordUse& use);
  void Drop(uint64_t tag, uint32_t place);
  Status Append(size_t n, const RecordAppender::Fill& fill);

  std::string shared_;
  IoThreads& threads_;
  const std::unique_ptr<RecordLog> log_;
  const std::unique_ptr<RecordIndex> index_;
  std::unique_ptr<RecordMoves> moves_;
  std::unique_ptr<AnnouncedRows> announced_;

  // --- Writer. ---
  RecordState state_ = {};  // the committed one
  RecordState next_ = {};   // of the moves in progress
  std::vector<RecordMove> entering_, leaving_;
  std::vector<RecordUse> leaving_uses_;    // of leaving_
  bool places_copies_ = false;             // whether entering_places_ is sorted
  std::vector<uint32_t> entering_places_;  // of entering_
  std::unique_ptr<RecordFiles> files_;
  std::unique_ptr<RecordAppender> appender_;
  std::unique_ptr<Compaction> compaction_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_STORE_H_
