// Group: all tables of one job on one node. A group is one directory with one writer, one step
// counter, one undo log and one commit record.
//
//   <group>/group            control file: identity, sequence word, two commit records (layout.h)
//   <group>/undo             before-images of the mutation in progress
//   <group>/writer.lock      OFD lock: its holder may write; also the liveness probe
//   <group>/.readers         OFD locks of readers that the writer waits for (reader_turns.h)
//   <group>/<table>/...      one folder per table (table_files.h)
//
// Rules:
// - A group has one writer, in one process. A forked child is not the writer. Every method that
//   writes refuses in any other process.
// - Readers take no lock and never write. Read() runs the caller's code between two looks at the
//   sequence word, and runs it again if a mutation came between, so the code must be repeatable.
// - A reader that loses to mutations again and again asks the writer for a turn (reader_turns.h).
// - If the writer died in the middle of a mutation, or waits until others decide about it, readers
//   read through the undo log (an overlay). They see the group as it was before that mutation.
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
#include "core/group/admission_policy.h"
#include "core/group/control_file.h"
#include "core/group/eviction_policy.h"
#include "core/group/read_view.h"
#include "core/group/row_number_cache.h"
#include "core/table/initializer.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

class Group;
class GroupWriter;

// Counters since this process opened the group.
struct GroupCounters {
  std::atomic<uint64_t> read_retries{0};
  // The longest time that one Read() spent on waiting, or on work that was discarded. Work counts
  // as processor time: on a busy machine a thread is off the processor for longer than any writer
  // makes it wait.
  std::atomic<uint64_t> read_blocked_ns_max{0};
  std::atomic<uint64_t> read_blocked_ns_total{0};  // the sum over all reads
  std::atomic<uint64_t> growth_blocked_ns_max{0};  // the part that index growth caused
  std::atomic<uint64_t> steps_applied{0};          // this and the next four: writer only
  std::atomic<uint64_t> rows_written{0};
  std::atomic<uint64_t> growth_splits{0};
  std::atomic<uint64_t> growth_ns_max{0};   // longest series of splits before one mutation
  std::atomic<uint64_t> publish_ns_max{0};  // longest time with an odd sequence word
};

// What Group::Info returns.
struct GroupInfo {
  std::string path;
  std::string uuid;
  uint64_t step = 0;
  // The number of changes outside of steps: assigns, erases, creations and removals of tables, and
  // optimizer bindings.
  uint64_t version = 0;
  int64_t writer_pid = 0;  // of the last writer, in its PID namespace
  bool writer_alive = false;
  bool unfinished = false;       // a mutation is in progress, or was when the writer died
  std::optional<Sealed> sealed;  // the seal of that mutation, if others decide about it
  uint64_t run_id = 0;
};

// The outcome of a mutation that a killed writer has sealed together with other groups.
enum class Undecided { kRefuse, kUndo, kPublish };

class Group {
 public:
  // Creates an empty group. `path` must not exist, its parent must. The directory has mode 0700,
  // the files have 0600.
  static Result<std::shared_ptr<Group>> Create(const std::string& path, const std::string& uuid,
                                               const GroupDraw& draw = GroupDraw::Random());
  // Maps an existing group. Refuses directories of other users, symbolic links, and files that are
  // truncated, damaged, of another kind or of another format.
  static Result<std::shared_ptr<Group>> Open(const std::string& path);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Acquires the writer lock, recovers what a dead writer left, and checks the index of every table
  // (record_checks.h). The Group must outlive the writer. Aborted: another process, or another
  // handle of this one, has the lock.
  //
  // If a mutation is sealed together with other groups and not published, these groups decide about
  // it. `outcome` is their decision; kRefuse means that it is not known, and returns
  // FailedPrecondition that names the run. A mutation that is not sealed is undone, whatever
  // `outcome` is.
  Result<std::unique_ptr<GroupWriter>> OpenWriter(Undecided outcome = Undecided::kRefuse);

  // --- Reading. Thread-safe. ---
  // Runs `read` on one committed state, and again whenever a mutation came between. Unavailable: no
  // attempt succeeded within `timeout_s`. ResourceExhausted: `read` uses a table that has outgrown
  // the address range of this process (address_range.h); the other tables can still be read.
  Status Read(const std::function<Status(const ReadView&)>& read, double timeout_s = 30.0);
  // Does the same, but returns false after `attempts` lost attempts.
  Result<bool> TryRead(const std::function<Status(const ReadView&)>& read, double timeout_s,
                       int attempts);
  // Announces that keys of a tiered table are needed within the next `steps` steps. Their rows that
  // are in memory stay until then, unless no other rows can leave. Returns which keys have no row
  // in memory.
  struct Announced {
    std::vector<int64_t> absent;  // keys that have no row in memory
    size_t room = 0;              // number of rows that Stage may read before they are needed
    uint64_t step = 0;            // the committed step
  };
  Result<Announced> Announce(int table, const int64_t* keys, size_t n, uint64_t steps);
  // Announces keys, and also reads those of their rows that are on disk. Their next user finds them
  // in memory (tier/record_cache.h).
  Status Stage(int table, const int64_t* keys, size_t n, uint64_t steps);
  // Checks the index, row numbers and free rows of a table against each other, while the writer may
  // be active. DataLoss describes the damage.
  Status Verify(int table);
  // Returns whether another process, or another handle of this one, has a writer of the group.
  bool WrittenElsewhere() const;
  // Blocks until `step` is committed. Unavailable, naming pid and step: the writer died first.
  // DeadlineExceeded: the step was not published within `timeout_s`. `cancelled` may be null; it is
  // read about ten times per second.
  Status WaitForStep(uint64_t step, double timeout_s, const std::atomic<bool>* cancelled) const;
  // Returns the committed step.
  uint64_t step() const;
  // Returns the number of changes of the tables outside of steps.
  uint64_t version() const;
  // Returns the run of the last writer that called GroupWriter::SetRun.
  uint64_t run_id() const;
  GroupDraw draw() const;
  GroupInfo Info() const;
  // Returns the bytes of all files in memory. Asks the file system for each.
  uint64_t Bytes() const;
  // Returns DataLoss if the group's directory was removed or holds another group now. Mapped files
  // can still be read.
  Status CheckInPlace() const;
  GroupCounters& counters() const { return counters_; }
  // Returns the row numbers that lookups of this process found, for its writer.
  RowNumberCache& row_numbers() const;

  // --- Tables. ---
  // A number belongs to one table for the life of the group (table_number.h). These methods see
  // tables that other processes have created or removed. NotFound: the group has no such table.
  //
  // Returns the numbers of all tables.
  Result<std::vector<int>> Tables();
  // Returns the number of the table of this name.
  Result<int> FindTable(const std::string& name);
  // Returns the number of the table that has a table's sketch (admission_policy.h), if there is
  // one. FailedPrecondition: another table has its name.
  Result<std::optional<int>> SketchOf(int table);
  // Returns the configuration of a table.
  Result<std::shared_ptr<const TableConfig>> Config(int table);
  // Returns FailedPrecondition unless the table's uuid is `uuid` ("" matches any).
  Status CheckUuid(int table, const std::string& uuid);
  // Unmaps the table of this name if it is mapped, when nobody in this process needs it. Does
  // nothing in the writer's process.
  void Forget(const std::string& name);
  const std::string& path() const { return path_; }

  struct Impl;  // group_impl.h

 private:
  friend class GroupWriter;
  friend class ReadView;
  friend class Scan;
  Group();
  // Returns an error if the table is damaged. Does not keep it mapped, because it may not be
  // needed.
  Status CheckTable(int table);

  std::string path_;
  std::unique_ptr<Impl> impl_;
  mutable GroupCounters counters_;
};

// One table's part of a step. Keys must be unique: merge repeated ones first (merge.h).
struct TableUpdate {
  int table = 0;
  const int64_t* keys = nullptr;     // int64[n]
  const float* gradients = nullptr;  // float[n, dim]
  size_t n = 0;
  const float* hyper = nullptr;  // HyperCount(kind) floats
  size_t n_hyper = 0;
  // Used instead of `gradients` if they are in several places: float[n, dim] each, one after
  // another.
  struct Piece {
    const float* rows;
    size_t n;
  };
  std::vector<Piece> pieces = {};
  // The occurrences of each key in training, for a table that counts them; null: all 1.
  const uint32_t* occurrences = nullptr;
};

// The values that an assign writes to one plane, which role and name identify (table/planes.h).
struct PlaneValues {
  PlaneRole role = PlaneRole::kEmbedding;
  std::string name = "embedding";
  size_t row_bytes = 0;          // of the plane
  const void* values = nullptr;  // row_bytes for each key
};

// Rows of one table to set. Absent keys are added.
struct TableWrites {
  int table = 0;
  const int64_t* keys = nullptr;  // int64[n], unique
  size_t n = 0;
  // The values to set. In other planes, existing keys keep their values. InvalidArgument, naming
  // the plane: the table has no such plane, or one of another width.
  std::vector<PlaneValues> planes = {};
  const uint32_t* positions = nullptr;  // the position of each key's values; null: that of the key
};

// Keys of one table to remove. Absent ones are skipped.
struct TableErases {
  int table = 0;
  const int64_t* keys = nullptr;  // int64[n]
  size_t n = 0;
};

// Changes of rows in one commit. Each key of a table may be in one part only.
struct RowChanges {
  // The committed step + 1, if this is a step. A step does not change the group's version; other
  // changes raise it.
  std::optional<uint64_t> step = {};
  // Updates, which only a step may have. Absent keys get their initial row first. InvalidArgument,
  // naming table and key: a gradient is not finite, or a key repeats. A table may have at most 2^31
  // - 1 keys, here and below.
  std::vector<TableUpdate> updates = {};
  // The optimizer of a step. FailedPrecondition, naming the table: its slots belong to another one.
  OptimizerUse optimizer = {};
  std::vector<TableWrites> writes = {};
  std::vector<TableErases> erases = {};
};

// The group's one writer. Not thread-safe: callers serialize. Every method takes effect as a whole
// or, with an error, not at all. If the process is killed at any instruction, the next writer finds
// the change complete or undoes it.
class GroupWriter {
 public:
  // Releases the lock. The group stays, and so does a sealed change, for the next writer.
  ~GroupWriter();

  // --- Changes of rows, in several calls. ---
  //
  // Prepares changes. Everything that can fail happens here, and the tables do not change until
  // Write. `executor`, and what `changes` points to, must stay until Publish or Abort; until then
  // all other writes are refused (FailedPrecondition).
  Status Prepare(const RowChanges& changes, Executor& executor);
  // Writes the changes to the files. Readers wait from here on.
  void Write() noexcept;
  // After Write: records that other groups take part in the decision to publish. If this writer
  // ends before that, the next one finds the seal (OpenWriter).
  void Seal(const Sealed& sealed) noexcept;
  // Returns whether a change is sealed, and neither published nor aborted.
  bool sealed() const;
  // Makes the changes visible. Writes them first if Write was not called.
  void Publish() noexcept;
  // Drops the prepared changes, and undoes them if they are written.
  void Abort() noexcept;

  // --- Changes of rows, in one call. ---
  // Makes one optimizer step of all tables. `step` must be the committed step + 1.
  Status ApplyStep(uint64_t step, const std::vector<TableUpdate>& updates, Executor& executor);
  // Sets rows and adds absent keys. `slots` has SlotCount pointers to float[n, SlotWidth]; null:
  // existing keys keep their slots, and new keys get initial ones. If a key repeats, its last row
  // counts. In a tiered table the rows are set in several parts, each a quarter of the rows that
  // fit into memory, and only each part takes effect as a whole. `uses`: the RowUse of each row;
  // null: existing rows keep theirs, and new ones count as used in the committed step.
  Status Assign(int table, const int64_t* keys, const float* rows, const float* const* slots,
                size_t n, Executor& executor, const void* uses = nullptr);
  // Does the same for any of the embedding, the slots and the metadata planes.
  Status Assign(int table, const int64_t* keys, const std::vector<PlaneValues>& planes, size_t n,
                Executor& executor);
  // Removes keys and returns how many of them the table had. Absent ones are skipped.
  Result<size_t> Erase(int table, const int64_t* keys, size_t n);

  // Creates a table and returns its number. AlreadyExists: the group has a table of this name.
  Result<int> CreateTable(const TableConfig& config);
  // Removes a table and its files. Readers find it complete or not at all. No other table ever gets
  // its number.
  Status RemoveTable(int table);
  // Binds an optimizer: creates the files of its slots, with their initial values for all rows.
  // Binding the same configuration again does nothing. FailedPrecondition: another one is bound,
  // and `replace` is false.
  Status BindOptimizer(int table, const OptimizerConfig& config, bool replace);
  // Resets the slots of the bound optimizer in all rows to their initial values. Any optimizer may
  // train the table next.
  Status RenewSlots(int table);
  // Records which optimizer the slots belong to, after they were loaded together with its
  // variables.
  Status SetOptimizer(int table, const OptimizerUse& optimizer);
  // Sets the seed of a table's index if the table has never had a row; otherwise does nothing.
  // Returns whether the table has this seed afterwards.
  Result<bool> TakeIndexSeed(int table, uint64_t seed);
  // Begins another change generation and returns its number. Scan::ChangedSince finds what is
  // written from then on. Any number of consumers may use generations.
  Result<uint32_t> MarkChanges();
  // Lets the steps of this writer evict rows of a table; null: none. FailedPrecondition: the table
  // does not record the use of its rows. InvalidArgument: its memory has no places for so many.
  Status SetEviction(int table, std::shared_ptr<const EvictionPolicy> policy);
  // Lets the steps of this writer add rows only as a policy says; null: always. Makes the sketch of
  // the table, if it has none. A sketch of another form is replaced, and without a policy it is
  // removed. Returns whether counts were lost by that. After an error the table has no
  // policy, and perhaps no sketch. FailedPrecondition: the group has another table of the sketch's
  // name.
  Result<bool> SetAdmission(int table, std::shared_ptr<const AdmissionPolicy> policy);
  // Lets the steps of this writer add every key to a table and evict nothing, until a policy is set
  // again. The sketch of the table stays.
  Status StopPolicies(int table);
  // Records the run of the job that this writer belongs to; its seals name it.
  void SetRun(uint64_t run_id);
  // Sets the committed step, after a state was restored or imported.
  Status SetStep(uint64_t step);
  // Calls Group::Verify for every table.
  Status Verify();

  struct Impl;  // group_impl.h

 private:
  friend class Group;
  explicit GroupWriter(Group& group);
  // Returns how many rows of a table are set in one commit.
  Result<size_t> RowsAtOnce(int table) const;
  // Creates planes with new slots for a table, and gives its index the seed. The index must be
  // empty if the seed changes.
  Status Rebind(int place, const OptimizerConfig& config, uint64_t index_seed);
  Group& group_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_GROUP_H_
