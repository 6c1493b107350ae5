// The implementation classes of Group and GroupWriter. Only files of this package include them.
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
#include "core/group/demotions.h"
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
  std::atomic<uint64_t> overlay_sequence{0};  // the sequence word of `overlay`; 0: there is none
  std::shared_ptr<const Overlay> overlay;

  RowNumberCache row_numbers;

  std::atomic<uint64_t> checked_version{UINT64_MAX};  // of the last state that CheckRead checked

  // Calls CheckRecord (record_checks.h) for a state that was read, if it was not checked before.
  Status CheckRead(const State& state, uint64_t epoch);
  // For the writer, which has all tables mapped.
  TableFiles* files(int place) const { return tables.files(static_cast<size_t>(place)); }
  // Returns the overlay of the unfinished mutation that follows `state`, whose sequence word is
  // `sequence`.
  Result<std::shared_ptr<const Overlay>> OverlayFor(uint64_t sequence, const State& state);
  // Frees the overlay of a mutation that is finished.
  void DropOverlay();
};

// How a reader waits for an unfinished mutation. Not thread-safe.
class MutationWait {
 public:
  explicit MutationWait(const Group::Impl& impl) : impl_(impl) {}

  // Returns whether to wait for the mutation of `sequence`. A reader does not wait for a mutation
  // that nobody will finish, and not for long for a sealed one, because others decide about it and
  // may take any time. It then reads through the undo log.
  bool IsNeeded(uint64_t sequence);
  // Waits a short time, at most until the mutation is finished.
  void Wait(uint64_t sequence) const;

 private:
  const Group::Impl& impl_;
  uint64_t sequence_ = 0;
  uint64_t sealed_ns_ = 0;  // the time when the seal was first seen; 0: it is not sealed
};

// Fewer keys than this are not worth a second thread.
constexpr size_t kSharedKeys = 16384;

// The rows that a mutation changes. It is kept from step to step and has one bit per row of a
// table, which is 0 between mutations.
class RowMarks {
 public:
  // Marks the rows at `positions`. Returns the first position whose row is also that of an earlier
  // one; -1 if there is none. Rows must be below `n_rows`.
  int64_t Mark(const std::vector<uint32_t>& rows, const std::vector<uint32_t>& positions,
               uint64_t n_rows);
  bool Has(uint32_t row) const { return (marks_[row >> 6] >> (row & 63) & 1) != 0; }
  // Removes the marks of these rows.
  void Clear(const std::vector<uint32_t>& rows, const std::vector<uint32_t>& positions);

 private:
  std::vector<uint64_t> marks_;
};

// How thoroughly a segment was checked since the group was opened (record_checks.h).
enum class Checked : uint8_t { kNot, kEntries, kKeys };

// What the writer keeps of a table from one mutation to the next.
struct TableMemory {
  RowMarks marks;
  std::vector<Checked> checked;  // by segment
  Demotions demotions;           // for a tiered table
  std::shared_ptr<const EvictionPolicy> eviction;
  std::shared_ptr<const AdmissionPolicy> admission;
  int sketch = -1;  // the number of the table that counts keys without a row
};

class RowMutation;

struct GroupWriter::Impl {
  Impl(const Group& group, ControlFile& control);
  ~Impl();

  std::unique_ptr<FileLock> lock;
  std::unique_ptr<ReaderTurns> turns;
  State state;  // the committed state
  StorageReserver reserver;
  BeforeImages images;                          // for scans
  std::vector<TableMemory> memory{kMaxTables};  // by place
  std::unique_ptr<RowMutation> prepared;        // last, because it refers to the others

  // Returns FailedPrecondition in a forked child, and while a change is prepared.
  Status CheckWriter(const Group& group) const;
  // Returns the place of the table. NotFound: it was removed.
  Result<int> PlaceOf(const Group& group, int table) const;
  // Maps the files of a table in a state again, writable, and no others.
  static Result<std::shared_ptr<TableFiles>> Remap(const Group& group, int place,
                                                   const TableState& table);
  // Checks a segment, unless it was checked at this level before.
  Status CheckSegmentOnce(const TableFiles& files, int place, uint32_t number, Checked level);
  // Records that a segment needs no check of this level.
  void MarkChecked(int place, uint32_t number, Checked level);
};

// Brings the group to its last committed epoch, by undoing what a killed writer left, or to the
// mutation that it sealed, as `outcome` says. Sets `state`. Called with the lock.
Status Recover(Group::Impl& impl, Undecided outcome, State* state);
// Undoes the mutation that follows `state`, the committed one, and publishes that state again.
// `killed`: its writer was killed, at any instruction.
Status UndoMutation(Group::Impl& impl, State* state, bool killed);

// Splits segments until each has space for its share of the keys at the positions `fresh` of
// `keys`. Each split is a mutation, so readers wait for one 64 KiB segment at a time.
Status GrowIndex(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters, int table,
                 const int64_t* keys, const std::vector<uint32_t>& fresh);

// Raises `maximum` to `value` if that is larger.
void RaiseMax(std::atomic<uint64_t>& maximum, uint64_t value);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_GROUP_IMPL_H_
