// What Group and GroupWriter are made of. Included by what implements them, in this package.
#ifndef TFSPS_CORE_GROUP_GROUP_IMPL_H_
#define TFSPS_CORE_GROUP_GROUP_IMPL_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/group/before_images.h"
#include "core/group/control_file.h"
#include "core/group/evictions.h"
#include "core/group/group.h"
#include "core/group/mapped_tables.h"
#include "core/group/overlay.h"
#include "core/group/reader_turns.h"
#include "core/group/undo_log.h"
#include "core/os/file_lock.h"
#include "core/os/storage_reserver.h"
#include "core/table/table_files.h"

namespace tsps {

struct Group::Impl {
  std::unique_ptr<ControlFile> control;
  std::unique_ptr<UndoLog> undo;
  std::unique_ptr<LockProbe> probe;

  MappedTables tables;

  std::mutex overlay_mutex;
  std::atomic<uint64_t> overlay_sequence{0};  // 0: there is none
  std::shared_ptr<const Overlay> overlay;

  RowNumberCache row_numbers;

  std::atomic<uint64_t> checked_version{UINT64_MAX};  // of the state that CheckRead saw last

  // CheckRecord (damage.h) of a state that was read; of the tables only when there may be others.
  Status CheckRead(const State& state, uint64_t epoch);
  // The writer's: it has all tables mapped.
  TableFiles* files(int place) const { return tables.files(static_cast<size_t>(place)); }
  // Of the unfinished mutation that follows `state`, which belongs to `sequence`.
  Result<std::shared_ptr<const Overlay>> OverlayFor(uint64_t sequence, const State& state);
  // Frees the overlay of a mutation that is over.
  void DropOverlay();
};

// Waits of a reader for an unfinished mutation.
class MutationWait {
 public:
  explicit MutationWait(const Group::Impl& impl) : impl_(impl) {}

  // Whether the mutation to `sequence` is to be waited for. Not, if nobody will finish it, and not
  // for long, if it is sealed: others decide about it, and may take as long as they like. What is
  // written can then be read through its undo log.
  bool IsNeeded(uint64_t sequence);
  // A while, at most until the mutation is over.
  void Wait(uint64_t sequence) const;

 private:
  const Group::Impl& impl_;
  uint64_t sequence_ = 0;
  uint64_t sealed_ns_ = 0;  // since when it has been seen sealed; 0: it is not
};

// Finds out whether a row number repeats. Kept from step to step: a bit per row of a table, which
// is 0 between calls.
class RowMarks {
 public:
  // The first of `positions` whose row is an earlier one's, too; -1 if there is none. Rows are
  // below `n_rows`.
  int64_t FirstRepeated(const std::vector<uint32_t>& rows, const std::vector<uint32_t>& positions,
                        uint64_t n_rows);

 private:
  std::vector<uint64_t> marks_;
};

// How far a segment was looked at since the group was opened (damage.h).
enum class Checked : uint8_t { kNot, kEntries, kKeys };

// What the writer remembers of a table from one mutation to the next.
struct TableMemory {
  RowMarks marks;
  std::vector<Checked> checked;  // by segment
  Evictions evictions;           // of a tiered table
};

class PreparedChanges;

struct GroupWriter::Impl {
  Impl(const Group& group, ControlFile& control);
  ~Impl();

  std::unique_ptr<FileLock> lock;
  std::unique_ptr<ReaderTurns> turns;
  State state;  // the committed state
  StorageReserver reserver;
  BeforeImages images;                          // for scans
  std::vector<TableMemory> memory{kMaxTables};  // by place
  std::unique_ptr<PreparedChanges> prepared;    // after what it refers to

  // FailedPrecondition in a forked child, and while a step is prepared.
  Status CheckWriter(const Group& group) const;
  // Where the table is; NotFound when it is not there any more.
  Result<int> PlaceOf(const Group& group, int table) const;
  // Maps the table's files again, those of the state alone, to write.
  static Result<std::shared_ptr<TableFiles>> MapAnew(const Group& group, int place,
                                                     const TableState& table);
  // Looks at a segment, unless that was done.
  Status CheckSegmentOnce(const TableFiles& files, int place, uint32_t number, Checked level);
  void MarkChecked(int place, uint32_t number, Checked level);
};

// Makes the group as of its last committed epoch, undoing what a killed writer left, or as of the
// mutation that it has sealed. Called under the lock.
Status Recover(Group::Impl& impl, Undecided outcome, State* state);
// Undoes the mutation that follows `state`, the committed one, and publishes that again. `killed`:
// its writer was, at any instruction of it.
Status UndoMutation(Group::Impl& impl, State* state, bool killed);

// Splits segments until each has room for its share of `fresh` keys of `keys`. Each split is a
// mutation of its own, so readers wait for one 64 KiB segment at a time.
Status GrowIndex(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters, int table,
                 const int64_t* keys, const std::vector<uint32_t>& fresh);

void RaiseMax(std::atomic<uint64_t>& maximum, uint64_t value);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_GROUP_IMPL_H_
