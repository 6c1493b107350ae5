// What Group and GroupWriter are made of. Included only by core's .cc files that implement them.
#ifndef TFSPS_CORE_GROUP_GROUP_IMPL_H_
#define TFSPS_CORE_GROUP_GROUP_IMPL_H_

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/prefetch.h"
#include "core/group/control_file.h"
#include "core/group/group.h"
#include "core/group/mapped_tables.h"
#include "core/group/overlay.h"
#include "core/group/undo_log.h"
#include "core/os/storage_reserver.h"
#include "core/os/writer_lock.h"
#include "core/table/table_files.h"

namespace tsps {

struct Group::Impl {
  std::unique_ptr<ControlFile> control;
  std::unique_ptr<UndoLog> undo;
  std::unique_ptr<WriterProbe> probe;

  MappedTables tables;

  std::mutex overlay_mutex;
  uint64_t overlay_sequence = 0;
  std::shared_ptr<const Overlay> overlay;

  std::atomic<uint64_t> checked_version{UINT64_MAX};  // of the state that CheckRead saw last

  // CheckRecord (damage.h) of a state that was read; of the tables only when there may be others.
  Status CheckRead(const State& state, uint64_t epoch);
  // The writer's: it has all tables mapped.
  TableFiles* files(int place) const { return tables.files(static_cast<size_t>(place)); }
  // Of the unfinished mutation that follows `state`, which belongs to `sequence`.
  Result<std::shared_ptr<const Overlay>> OverlayFor(uint64_t sequence, const State& state);
};

// What a mutation does to the rows of one table: which keys are there, which are new, and where
// they go.
struct RowPlan {
  int table = 0;  // its place
  const int64_t* keys = nullptr;
  size_t n = 0;
  bool unique = false;             // the keys are known to be
  std::vector<uint32_t> rows;      // row number of each key, new ones included
  std::vector<uint32_t> existing;  // positions in keys
  std::vector<uint32_t> fresh;     // positions in keys
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
};

// Where a table's rows (plane 0) and slots (planes 1 ..) lie, for loops over many of them.
struct RowPlanes {
  // Rows fetched ahead of the one at work: they are scattered, and the table is larger than any
  // cache.
  static constexpr size_t kAhead = 16;

  float* base[1 + kMaxSlots] = {};
  int n = 0;
  size_t dim = 0;

  float* at(int plane, uint32_t row) const { return base[plane] + row * dim; }
  size_t bytes() const { return dim * sizeof(float); }
  void Prefetch(int plane, uint32_t row) const { tsps::Prefetch(at(plane, row), bytes()); }
};

class PreparedStep;

struct GroupWriter::Impl {
  Impl();
  ~Impl();

  std::unique_ptr<WriterLock> lock;
  State state;  // the committed state
  StorageReserver reserver;
  std::vector<TableMemory> memory{kMaxTables};  // by place
  std::unique_ptr<PreparedStep> prepared;       // after what it refers to

  // FailedPrecondition in a forked child, and while a step is prepared.
  Status CheckWriter(const Group& group) const;
  // Where the table is; NotFound when it is not there any more.
  Result<int> PlaceOf(const Group& group, int table) const;
  // Maps the table's files again, and lets go of all that was mapped of it.
  Status MapAnew(const Group& group, int place);
  // Looks at a segment, unless that was done.
  Status CheckSegmentOnce(const TableFiles& files, int place, uint32_t number, Checked level);
  void MarkChecked(int place, uint32_t number, Checked level);
};

// Row numbers of keys, kAbsentRow for absent ones, by batched probes. Also the writer's way in: no
// overlay, no validation. Returns the position of a key that the index leads astray, out of the
// table's segments or rows: damage, unless a writer came between; or -1. The files are those of
// `state` (TableFiles::CheckFiles).
int64_t ProbeRows(const TableFiles& files, const TableState& state, const int64_t* keys, size_t n,
                  uint32_t* rows);
// DataLoss, naming such a key.
Status Astray(const TableFiles& files, int64_t key);

// Makes the group as of its last committed epoch, undoing what a killed writer left. Called under
// the lock.
Status Recover(Group::Impl& impl, State* state);

// A mutation of rows, in three acts. Prepare can fail and changes nothing that a reader or a
// recovery sees (index growth is committed by itself). Between Begin and Commit nothing can fail.
class RowMutation {
 public:
  RowMutation(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
              Executor& executor)
      : group_(group),
        writer_(writer),
        counters_(counters),
        executor_(executor),
        next_(writer.state) {}
  // Ends the process if an exception (of a lack of memory, say) came between Begin and Commit: what
  // is half written can be undone by the next writer only.
  ~RowMutation() {
    if (begun_ns_ != 0) std::terminate();
  }
  RowMutation(const RowMutation&) = delete;
  RowMutation& operator=(const RowMutation&) = delete;

  // Announces changes to the rows of `n` keys, at most 2^31 - 1, of the table in place `table`,
  // which must be new to this mutation.
  void Add(int table, const int64_t* keys, size_t n, bool unique = false);
  // Finds out which of the keys are there; calls also(p) for every plan p on the way.
  // InvalidArgument, naming table and key, if a key repeats, unless they are known to be `unique`:
  // its row would be updated twice, or be two rows. DataLoss if two keys have one row.
  Status Plan(const std::function<void(size_t p)>& also = nullptr);
  // Whether some key is not there.
  bool HasFresh() const;
  // Storage for new rows; before-images of existing rows and the list of new keys into the undo
  // log.
  Status Prepare();
  std::vector<RowPlan>& plans() { return plans_; }
  State& next() { return next_; }

  RowPlanes Planes(const RowPlan& plan) const;
  // Calls body(p) for every plan p, plans of many rows one by one and small ones side by side.
  void ForEachPlan(const std::function<void(size_t p)>& body);
  // Writes initial row and slots of the fresh keys. Before Begin: nobody sees them yet.
  void InitializeFresh(const RowPlan& plan);

  void Begin();
  // Adds the fresh keys to the index and publishes.
  void Commit();

 private:
  Status PlanTable(RowPlan& plan);
  Status CheckFreshUnique(const RowPlan& plan) const;
  Status CheckMaxRows(const RowPlan& plan) const;
  Status ReserveRows(RowPlan& plan);
  Status WriteUndo();
  void CopyImages(const RowPlan& plan, UndoRecordHeader* record);

  Group::Impl& group_;
  GroupWriter::Impl& writer_;
  GroupCounters& counters_;
  Executor& executor_;
  State next_;
  std::vector<RowPlan> plans_;
  uint64_t begun_ns_ = 0;
};

// Splits segments until each has room for its share of `fresh` keys of `keys`. Each split is a
// mutation of its own, so readers wait for one 64 KiB segment at a time.
Status GrowIndex(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters, int table,
                 const int64_t* keys, const std::vector<uint32_t>& fresh);

void RaiseMax(std::atomic<uint64_t>& maximum, uint64_t value);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_GROUP_IMPL_H_
