// PyGroup and PyScan: a Group with its writer, and scans of its tables, for Python.
#ifndef TFSPS_PYTHON_PY_GROUP_H_
#define TFSPS_PYTHON_PY_GROUP_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/key_owner.h"
#include "core/group/group.h"
#include "core/group/scan.h"
#include "executor/eigen_executor.h"
#include "python/convert.h"

namespace tsps {

// (table, keys int64[n], gradients float[n, dim], counts int32[n] or None, hyper)
using PyUpdate =
    std::tuple<int, KeyArray, FloatArray, std::optional<CountArray>, std::vector<float>>;

// A scan of one table as of one committed state. Scans of several tables may share a state. Scans
// that share one must not be used by several threads at once.
class PyScan {
 public:
  PyScan(std::shared_ptr<Group> group, int table, bool with_slots)
      : group_(std::move(group)), table_(table), with_slots_(with_slots) {}

  // Begins the scan. With `since`, a change generation, only rows that were written then or later
  // are returned.
  Status Begin(std::shared_ptr<Scan> scan, std::optional<uint32_t> since);
  uint64_t Step() const { return Open().step(); }
  uint64_t Rows() const { return Open().RowsOf(table_); }
  uint64_t RowNumbers() const { return Open().RowNumbers(table_); }
  void SkipTo(uint64_t row) { Open().SkipTo(table_, row); }
  py::dict Optimizer() const { return ToPython(Open().Planes(table_).optimizer); }
  py::tuple TrainedBy() const { return ToPython(Open().TrainedBy(table_)); }
  // Returns the next rows, at most n: (keys int64[m], rows float[m, dim], [slot float[m, width]],
  // {name: metadata [m, elements]}). m is 0 at the end.
  py::tuple Next(size_t n);
  // Returns the planes that the scan reads, as positions in the table's list: the planes of a
  // parameter file, in its order.
  std::vector<size_t> Wanted() const;
  const PlaneList& Planes() const { return Open().Planes(table_); }
  // Reads the next rows, at most n, as they are stored. `planes` has an address for each plane of
  // the table's list, or null. Returns the number of rows.
  Result<size_t> NextStored(size_t n, int64_t* keys, char* const* planes);
  // Returns the keys that were erased since then, int64[m]. None: the changes are not known, and
  // the scan returns all rows.
  py::object Erased() const;
  // Restricts rows and erased keys to those that a hash assigns to one of several nodes. Call it
  // before the first row is read.
  void TakeShard(uint32_t node, uint32_t nodes);
  void Close() { scan_.reset(); }

 private:
  Scan& Open() const {
    if (scan_ == nullptr) {
      Throw(Error(Code::kFailedPrecondition, "this scan is closed. Begin another one"));
    }
    return *scan_;
  }
  bool IsOfShard(int64_t key) const { return nodes_ == 0 || OwnerOf(key, nodes_) == node_; }
  // Removes rows of other shards. Returns how many rows are left.
  size_t KeepShard(size_t n, int64_t* keys, char* const* planes) const;

  const std::shared_ptr<Group> group_;
  const int table_;
  const bool with_slots_;
  uint32_t node_ = 0;
  uint32_t nodes_ = 0;  // 0: rows of all shards
  std::optional<uint32_t> since_;
  std::vector<int64_t> erased_;
  std::shared_ptr<Scan> scan_;
};

// A group and, in one process, its writer. Thread-safe: a mutex serializes the writes.
class PyGroup {
 public:
  PyGroup(std::shared_ptr<Group> group, int threads)
      : group_(std::move(group)), executor_(std::make_unique<EigenExecutor>(threads)) {}
  ~PyGroup() { CloseWriter(); }

  void OpenWriter() {
    ThrowIfError(WithoutGil([&]() -> Status {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (writer_ != nullptr) return Status();
      TSPS_ASSIGN_OR_RETURN(writer_, group_->OpenWriter());
      return Status();
    }));
  }
  void CloseWriter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    writer_.reset();
  }
  // Returns whether the directory still contains this group.
  bool InPlace() const { return group_->CheckInPlace().ok(); }
  py::dict Info() const;
  py::dict Counters() const;
  uint64_t Life() const { return group_->draw().life; }
  uint64_t Step() const { return group_->step(); }

  int FindTable(const std::string& name) { return ValueOrThrow(group_->FindTable(name)); }
  std::vector<int> Tables() { return ValueOrThrow(group_->Tables()); }
  void ForgetTable(const std::string& name) { group_->Forget(name); }
  py::dict TableInfo(int table);
  py::dict Stats(int table);

  int CreateTable(const std::string& name, const std::string& uuid, int64_t dim, int64_t key_limit,
                  int64_t max_rows, const py::dict& initializer, const py::list& metadata,
                  const std::string& dtype, const std::string& rounding,
                  const std::string& storage_folder, uint64_t storage_memory,
                  uint64_t storage_file_bytes, uint32_t node, uint32_t nodes);
  void RemoveTable(int table);
  // Returns whether the counts of another sketch were lost.
  bool SetAdmission(int table, uint32_t count, uint32_t half_life, uint64_t expected_keys);
  // Returns the number of the table of a table's sketch, or None.
  py::object SketchOf(int table);
  // Returns the share of a sketch's cells that are not 0, and the share of keys without a row that
  // would be admitted although they never occurred.
  py::tuple SketchFill(int table, int sketch, uint32_t count, uint32_t half_life);
  // Returns the committed step, and the earliest step that a row was last trained in; None if there
  // is no row, or the table does not record it.
  py::object OldestUse(int table);
  void SetEviction(int table, const std::string& order, uint64_t unused_steps, uint64_t max_rows,
                   uint32_t half_life, const KeyArray& keep);
  void StopPolicies(int table) {
    ThrowIfError(Write([&](GroupWriter& writer) { return writer.StopPolicies(table); }));
  }
  void BindOptimizer(int table, const std::string& kind, const std::vector<float>& slot_init,
                     bool replace);
  void SetOptimizer(int table, uint64_t id, uint64_t steps) {
    ThrowIfError(
        Write([&](GroupWriter& writer) { return writer.SetOptimizer(table, {id, steps}); }));
  }

  FloatArray Lookup(int table, const KeyArray& keys);

  // Looks up rows of several tables, all of one step. Returns (step, [float[n, dim] per part]).
  py::tuple LookupTables(const std::vector<std::pair<int, KeyArray>>& parts);
  // Returns (found bool[n], rows float[n, dim], [slot float[n, SlotWidth]]). Absent rows are zeros.
  py::tuple Entries(int table, const KeyArray& keys, bool with_slots);
  // Returns the values of all metadata planes, {plane: [n, elements]}. Absent rows are zeros.
  py::dict Metadata(int table, const KeyArray& keys);

  // Returns all keys of a table.
  KeyArray Keys(int table);

  // Begins scans of several tables, all of one state. since[i], if given, is for tables[i]. `limit`
  // is the largest number of bytes of images that the scan keeps; 0: the default.
  std::vector<std::unique_ptr<PyScan>> BeginScans(
      const std::vector<int>& tables, bool with_slots, uint64_t limit,
      const std::vector<std::optional<uint32_t>>& since);

  uint32_t MarkChanges();
  // Returns (everything, written int64[n], erased int64[m]).
  py::tuple ChangedSince(int table, uint32_t generation);

  void ApplyStep(uint64_t step, const std::vector<PyUpdate>& updates);

  void Assign(int table, const KeyArray& keys, const FloatArray& rows,
              const std::vector<FloatArray>& slots, const MetadataArrays& metadata);

  size_t Erase(int table, const KeyArray& keys);
  void SetStep(uint64_t step) {
    ThrowIfError(Write([&](GroupWriter& writer) { return writer.SetStep(step); }));
  }
  // Checks a table. Raises DamagedFileError, which describes the damage.
  void Verify(int table) {
    ThrowIfError(WithoutGil([&] { return group_->Verify(table); }));
  }

 private:
  // Returns the configuration of a table. Raises NotFoundError: the group has no such table.
  std::shared_ptr<const TableConfig> Config(int table) {
    return ValueOrThrow(WithoutGil([&] { return group_->Config(table); }));
  }
  TableStats StatsOf(int table) {
    TableStats stats;
    ThrowIfError(Read([&](const ReadView& view) {
      stats = view.Stats(table);
      return Status();
    }));
    return stats;
  }
  template <typename Body>
  Status Read(const Body& body) {
    return WithoutGil([&] { return group_->Read(body); });
  }
  template <typename Body>
  Status Write(const Body& body) {
    return WithoutGil([&]() -> Status {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (writer_ == nullptr) {
        return Error(Code::kFailedPrecondition, group_->path(),
                     " is open for reading only. Nothing was written. Open it with mode \"r+\"");
      }
      return body(*writer_);
    });
  }

  const std::shared_ptr<Group> group_;
  const std::unique_ptr<EigenExecutor> executor_;
  std::mutex mutex_;
  std::unique_ptr<GroupWriter> writer_;  // destroyed before group_
};

}  // namespace tsps

#endif  // TFSPS_PYTHON_PY_GROUP_H_
