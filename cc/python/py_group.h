// PyGroup: a Group, and in one process its writer, for Python.
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

// One table as of one committed state; scans of several may share it. Not thread-safe, nor are
// those that share one.
class PyScan {
 public:
  PyScan(std::shared_ptr<Group> group, int table, bool with_slots)
      : group_(std::move(group)), table_(table), with_slots_(with_slots) {}

  // `since`: a change generation; of rows alone that were written then or later.
  Status Begin(std::shared_ptr<Scan> scan, std::optional<uint32_t> since);
  uint64_t Step() const { return Open().step(); }
  uint64_t Rows() const { return Open().RowsOf(table_); }
  py::dict Optimizer() const { return ToPython(Open().Planes(table_).optimizer); }
  py::tuple TrainedBy() const { return ToPython(Open().TrainedBy(table_)); }
  // The next rows, at most n: (keys int64[m], rows float[m, dim], [slot float[m, width]], {name:
  // metadata [m, elements]}). m is 0 at the end.
  py::tuple Next(size_t n);
  // The planes that come, by their places in the list: those of a parameter file, in its order.
  std::vector<size_t> Wanted() const;
  const PlaneList& Planes() const { return Open().Planes(table_); }
  // The next rows, at most n, as they are stored; planes by their places in the list.
  Result<size_t> NextStored(size_t n, int64_t* keys, char* const* planes);
  // The keys that were erased since, int64[m], or None: it is not known what changed, and all rows
  // come.
  py::object Erased() const;
  // Of the rows, and of the erased keys, only those come that a hash gives to one of several nodes.
  // Before the first of them.
  void TakeShard(uint32_t node, uint32_t nodes);
  void Close() { scan_.reset(); }

 private:
  Scan& Open() const {
    if (scan_ == nullptr) Throw(Error(Code::kFailedPrecondition, "this scan is closed"));
    return *scan_;
  }
  bool IsOfShard(int64_t key) const { return nodes_ == 0 || OwnerOf(key, nodes_) == node_; }
  // Leaves out rows of other shards; returns how many are left.
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

// A group and, in one process, its writer. Thread-safe: reads go to the Group, writes are
// serialised here.
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
  bool IsWriter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return writer_ != nullptr;
  }

  // Whether the directory still is this group's.
  bool InPlace() const { return group_->CheckInPlace().ok(); }
  py::dict Info() const;
  py::dict Counters() const;
  uint64_t Life() const { return group_->draw().life; }
  uint64_t Step() const { return group_->step(); }
  void WaitForStep(uint64_t step, double timeout_s) const {
    ThrowIfError(WithoutGil([&] { return group_->WaitForStep(step, timeout_s, nullptr); }));
  }

  int FindTable(const std::string& name) { return ValueOrThrow(group_->FindTable(name)); }
  std::vector<int> Tables() { return ValueOrThrow(group_->Tables()); }
  void ForgetTable(const std::string& name) { group_->Forget(name); }
  py::dict TableInfo(int table);
  py::dict Stats(int table);

  int CreateTable(const std::string& name, const std::string& uuid, int64_t dim, int64_t key_limit,
                  int64_t max_rows, const py::dict& initializer, const py::list& metadata,
                  const std::string& dtype, const std::string& rounding,
                  const std::string& storage_folder, uint64_t storage_memory, uint32_t node,
                  uint32_t nodes);
  void BindOptimizer(int table, const std::string& kind, const std::vector<float>& slot_init,
                     bool replace);
  void SetOptimizer(int table, uint64_t id, uint64_t steps) {
    ThrowIfError(
        Write([&](GroupWriter& writer) { return writer.SetOptimizer(table, {id, steps}); }));
  }

  FloatArray Lookup(int table, const KeyArray& keys);

  // Rows of several tables, all of one step: (step, [float[n, dim] per part]).
  py::tuple LookupTables(const std::vector<std::pair<int, KeyArray>>& parts);
  // (found bool[n], rows float[n, dim], [slot float[n, SlotWidth]]); what is absent is zero.
  py::tuple Entries(int table, const KeyArray& keys, bool with_slots);
  // {plane: [n, elements]} of all metadata planes; what is absent is zero.
  py::dict Metadata(int table, const KeyArray& keys);

  KeyArray Keys(int table);

  // `limit`: bytes of images at most; 0: the usual.
  // Of several tables, all as of one state; since[i], if any, is of tables[i].
  std::vector<std::unique_ptr<PyScan>> BeginScans(
      const std::vector<int>& tables, bool with_slots, uint64_t limit,
      const std::vector<std::optional<uint32_t>>& since);

  uint32_t MarkChanges();
  // (everything, written int64[n], erased int64[m]).
  py::tuple ChangedSince(int table, uint32_t generation);

  void ApplyStep(uint64_t step, const std::vector<PyUpdate>& updates);

  void Assign(int table, const KeyArray& keys, const FloatArray& rows,
              const std::vector<FloatArray>& slots, const MetadataArrays& metadata);

  size_t Erase(int table, const KeyArray& keys);
  void SetStep(uint64_t step) {
    ThrowIfError(Write([&](GroupWriter& writer) { return writer.SetStep(step); }));
  }
  // Raises DamagedFileError, saying what is damaged.
  void Verify(int table) {
    ThrowIfError(WithoutGil([&] { return group_->Verify(table); }));
  }

 private:
  // Throws when there is no such table, or not any more.
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
                     " is open for reading; open it with mode \"r+\"");
      }
      return body(*writer_);
    });
  }

  const std::shared_ptr<Group> group_;
  const std::unique_ptr<EigenExecutor> executor_;
  std::mutex mutex_;
  std::unique_ptr<GroupWriter> writer_;  // after group_: destroyed first
};

}  // namespace tsps

#endif  // TFSPS_PYTHON_PY_GROUP_H_
