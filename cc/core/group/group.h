// Group: the tables of one job on one node, in one directory, with one writer, one step gate, one
// undo log and one commit record.
//
//   <group>/group            control file: identity, sequence word, two commit records (layout.h)
//   <group>/undo             before-images of the mutation in progress
//   <group>/writer.lock      OFD lock: who holds it may write; also the liveness probe
//   <group>/.readers         OFD locks of readers that the writer waits for (reader_turns.h)
//   <group>/<table>/...      one folder per table (table_files.h)
//
// Caveats, first:
// - One writer per group, in one process; a forked child is not the writer. Every write method
//   refuses otherwise.
// - Readers take no lock and never write: Read() runs the caller's code between two looks at the
//   sequence word and runs it again when a mutation came between, so that code must be repeatable.
// - A reader that loses to mutations again and again asks the writer for a turn (reader_turns.h).
// - A reader that finds the writer dead in the middle of a mutation, or waiting for others to
//   decide about it, reads through the undo log (an overlay), and sees the group as it was before
//   that mutation.
#ifndef TFSPS_CORE_GROUP_GROUP_H_
#define TFSPS_CORE_GROUP_GROUP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/group/read_view.h"
#include "core/group/row_number_cache.h"
#include "core/table/initializer.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

class Group;
class GroupWriter;

// Counted since this process opened the group.
struct GroupCounters {
  std::atomic<uint64_t> read_retries{0};
  // Longest time one Read() spent waiting, or computing what was thrown away (processor time: on a
  // busy machine a thread is off the processor for longer than any writer makes it wait).
  std::atomic<uint64_t> read_blocked_ns_max{0};
  std::atomic<uint64_t> read_blocked_ns_total{0};  // of all reads
  std::atomic<uint64_t> growth_blocked_ns_max{0};  // the part of it that growth of an index caused
  std::atomic<uint64_t> steps_applied{0};          // writer only, as are the next four
  std::atomic<uint64_t> rows_written{0};
  std::atomic<uint64_t> growth_splits{0};
  std::atomic<uint64_t> growth_ns_max{0};   // longest burst of splits in front of one mutation
  std::atomic<uint64_t> publish_ns_max{0};  // longest time the sequence word was odd
};

struct GroupInfo {
  std::string path;
  std::string uuid;
  uint64_t step = 0;
  uint64_t version =
      0;  // assigns, erases, table creations and removals, and optimizer bindings so far
  int64_t writer_pid = 0;  // of the last writer, as it saw itself
  bool writer_alive = false;
  bool unfinished = false;       // a mutation is in progress, or was when the writer died
  std::optional<Sealed> sealed;  // of it, if others decide it, too
  uint64_t run_id = 0;
};

// What becomes of a mutation that a killed writer has sealed, together with other groups.
enum class Undecided { kRefuse, kUndo, kPublish };

class Group {
 public:
  // Creates an empty group; `path` must not exist (its parent must). The directory is 0700, the
  // files 0600.
  static Result<std::shared_ptr<Group>> Create(const std::string& path, const std::string& uuid,
                                               const GroupDraw& draw = GroupDraw::Random());
  // Maps an existing group. Refuses other users' directories, symlinks, foreign, newer, truncated
  // and damaged files.
  static Result<std::shared_ptr<Group>> Open(const std::string& path);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Takes the writer lock, recovers what a dead writer left and checks every table's index
  // (damage.h). Aborted when another process (or
  // another handle of this one) has it. The Group must outlive the writer.
  // A mutation that was sealed together with other groups, and is not published, is for them to
  // decide: FailedPrecondition, naming its run, unless `outcome` says what they have decided. One
  // that is not sealed is undone, whatever `outcome` is.
  Result<std::unique_ptr<GroupWriter>> OpenWriter(Undecided outcome = Undecided::kRefuse);

  // --- Reading. Thread-safe. ---
  // Runs `read` on one committed state, again if a mutation came between. Unavailable after
  // `timeout_s`. ResourceExhausted when `read` looks at a table that has outgrown the address range
  // of this process (address_range.h); the other tables can still be read.
  Status Read(const std::function<Status(const ReadView&)>& read, double timeout_s = 30.0);
  // The same, but false, after as many lost attempts.
  Result<bool> TryRead(const std::function<Status(const ReadView&)>& read, double timeout_s,
                       int attempts);
  // Says that keys of a tiered table are needed within so many steps: those of their rows that are
  // in memory stay until then, if others can leave.
  struct Announced {
    std::vector<int64_t> absent;  // keys that have no row in memory
    size_t room = 0;              // rows that Stage may read before they are needed
    uint64_t step = 0;            // that is committed
  };
  Result<Announced> Announce(int table, const int64_t* keys, size_t n, uint64_t steps);
  // The same, and reads rows that are on disk: who needs them next finds them in memory
  // (tier/record_cache.h).
  Status Stage(int table, const int64_t* keys, size_t n, uint64_t steps);
  // Checks index, row numbers and free list of a table against each other: DataLoss, saying what is
  // damaged. Beside any writer.
  Status Verify(int table);
  // Whether the group has a writer, in another process or another handle of this one.
  bool WrittenElsewhere() const;
  // Blocks until `step` is committed. Unavailable, naming pid and step, when the writer dies first.
  // `cancelled` may be null; it is looked at about ten times a second.
  Status WaitForStep(uint64_t step, double timeout_s, const std::atomic<bool>* cancelled) const;
  uint64_t step() const;
  // How many changes of the tables there were that were no steps.
  uint64_t version() const;
  // Of the last writer that has said so (GroupWriter::SetRun).
  uint64_t run_id() const;
  GroupDraw draw() const;
  GroupInfo Info() const;
  // Of all files. Asks the file system for each.
  uint64_t Bytes() const;
  // DataLoss if the group's directory was removed, or holds another group by now. What is mapped
  // can still be read.
  Status CheckInPlace() const;
  GroupCounters& counters() const { return counters_; }
  // What lookups of this process have found, for its writer.
  RowNumberCache& row_numbers() const;

  // --- Tables. A number is one table's for the life of the group (table_number.h). Tables that
  // another process has made, or removed, since the last look are seen. NotFound for tables that
  // are not there, or not any more. ---
  Result<std::vector<int>> Tables();
  Result<int> FindTable(const std::string& name);
  Result<std::shared_ptr<const TableConfig>> Config(int table);
  // FailedPrecondition unless the table's uuid is `uuid` ("" matches any).
  Status CheckUuid(int table, const std::string& uuid);
  // Unmaps the table of this name, if it is mapped: nobody here needs it. Not where the writer is.
  void Forget(const std::string& name);
  const std::string& path() const { return path_; }

  struct Impl;  // group_impl.h

 private:
  friend class GroupWriter;
  friend class ReadView;
  friend class Scan;
  Group();
  // Refuses a damaged table; which ones will be needed is not known. Leaves it unmapped.
  Status CheckTable(int table);

  std::string path_;
  std::unique_ptr<Impl> impl_;
  mutable GroupCounters counters_;
};

// One table's part of a step. Keys are unique: whoever has repeated ones merges them first
// (merge.h).
struct TableUpdate {
  int table = 0;
  const int64_t* keys = nullptr;     // int64[n]
  const float* gradients = nullptr;  // float[n, dim]
  size_t n = 0;
  const float* hyper = nullptr;  // HyperCount(kind) floats
  size_t n_hyper = 0;
  // In place of `gradients` where they lie in several places: one after another float[n, dim].
  struct Piece {
    const float* rows;
    size_t n;
  };
  std::vector<Piece> pieces = {};
};

// What the rows of an assign get in one plane, which role and name tell (table/planes.h).
struct PlaneValues {
  PlaneRole role = PlaneRole::kEmbedding;
  std::string name = "embedding";
  size_t row_bytes = 0;          // of the plane
  const void* values = nullptr;  // row_bytes for each key
};

// Rows of one table that are set, absent ones added.
struct TableWrites {
  int table = 0;
  const int64_t* keys = nullptr;  // int64[n], unique
  size_t n = 0;
  // InvalidArgument, naming the plane, when the table has no such plane, or one of another width.
  // Existing keys keep what they have in others.
  std::vector<PlaneValues> planes = {};
  const uint32_t* positions = nullptr;  // of each key's values; null: the key's own
};

// Keys of one table that are removed; absent ones are skipped.
struct TableErases {
  int table = 0;
  const int64_t* keys = nullptr;  // int64[n]
  size_t n = 0;
};

// What becomes of rows in one commit. Each key of a table is in one part at most.
struct RowChanges {
  // Of a step: the committed step + 1. It leaves the group's version as it is; other changes raise
  // it.
  std::optional<uint64_t> step = {};
  // Of a step only. Absent keys get their initial row first. A non-finite gradient and a key that
  // repeats are refused, naming table and key. At most 2^31 - 1 keys of a table, here and below.
  std::vector<TableUpdate> updates = {};
  // Of a step: whose slots are updated. FailedPrecondition, naming the table, if they are another
  // optimizer's.
  OptimizerUse optimizer = {};
  std::vector<TableWrites> writes = {};
  std::vector<TableErases> erases = {};
};

// The group's one writer. Not thread-safe: callers serialise. Every method either happens whole or,
// with an error, not at all; killed at any instruction, the next opener finds it whole or undone.
class GroupWriter {
 public:
  // Releases the lock; the group stays. A change that is sealed stays so: the next writer is told.
  ~GroupWriter();

  // --- Changes of rows, in acts. Everything that can fail is in Prepare: the tables are as they
  // were until Write. What `changes` point to, and `executor`, must stay until they are published
  // or aborted; nothing else can be written until then (FailedPrecondition).
  Status Prepare(const RowChanges& changes, Executor& executor);
  // Makes the changes in the files. Readers wait from here on.
  void Write() noexcept;
  // After Write: other groups decide, too, whether this is published. The next writer is told so
  // (OpenWriter) if this one ends before.
  void Seal(const Sealed& sealed) noexcept;
  // Whether there is a change that is sealed and neither published nor aborted.
  bool sealed() const;
  // Makes them visible; writes them first, if they are not written.
  void Publish() noexcept;
  // Drops what was prepared, and undoes what was written, if anything was.
  void Abort() noexcept;

  // --- The same in one. ---
  // Makes one optimizer step of all tables. `step` must be the committed step + 1.
  Status ApplyStep(uint64_t step, const std::vector<TableUpdate>& updates, Executor& executor);
  // Sets rows, adding absent keys. slots: SlotCount pointers to float[n, SlotWidth], or null:
  // existing keys keep theirs, new keys get initial ones. Of equal keys the last wins. Of a tiered
  // table in parts of a quarter of the rows that it has room for in memory, each of which happens
  // whole.
  Status Assign(int table, const int64_t* keys, const float* rows, const float* const* slots,
                size_t n, Executor& executor);
  // The same for any of the embedding, the slots and the metadata planes.
  Status Assign(int table, const int64_t* keys, const std::vector<PlaneValues>& planes, size_t n,
                Executor& executor);
  // Removes keys; absent ones are skipped. Returns how many were there.
  Result<size_t> Erase(int table, const int64_t* keys, size_t n);

  Result<int> CreateTable(const TableConfig& config);
  // Removes a table and its files: readers find it whole, or not at all. Its number is never given
  // to another.
  Status RemoveTable(int table);
  // Creates the slot files. The table's rows get the slots' initial values. Binding the same
  // configuration again is a no-op; another one is FailedPrecondition unless `replace`.
  Status BindOptimizer(int table, const OptimizerConfig& config, bool replace);
  // Gives all rows the initial values of the slots that the table is bound to: any optimizer may
  // train it next.
  Status RenewSlots(int table);
  // Says whose the slots are, when they have been loaded with the optimizer's own variables.
  Status SetOptimizer(int table, const OptimizerUse& optimizer);
  // Indexes a table with this seed, if it has never had a row; else does nothing. Returns whether
  // the table has it now.
  Result<bool> TakeIndexSeed(int table, uint64_t seed);
  // Begins another change generation and returns it: Scan::ChangedSince tells what is written
  // from here on. Any number of consumers may do so.
  Result<uint32_t> MarkChanges();
  // Says of which run of a job this writer is: what it seals is of that run.
  void SetRun(uint64_t run_id);
  // Sets the committed step, for a restored or imported state.
  Status SetStep(uint64_t step);
  // Group::Verify of every table.
  Status Verify();

  struct Impl;  // group_impl.h

 private:
  friend class Group;
  explicit GroupWriter(Group& group);
  // How many rows of a table are set in one commit.
  Result<size_t> RowsAtOnce(int table) const;
  // Gives the table planes with new slots, and its index, which is then empty, the seed.
  Status Rebind(int place, const OptimizerConfig& config, uint64_t index_seed);
  Group& group_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_GROUP_H_
