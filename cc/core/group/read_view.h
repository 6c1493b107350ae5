#ifndef TFSPS_CORE_GROUP_READ_VIEW_H_
#define TFSPS_CORE_GROUP_READ_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "core/table/layout.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

class Group;
class GroupWriter;
class Overlay;
class TableFiles;
struct MappedTable;
struct Plane;
struct PlaneList;
struct State;
struct TableState;

// Figures of a table in one committed state.
struct TableStats {
  uint64_t rows = 0;  // live keys, also those on disk
  uint64_t rows_on_disk = 0;
  uint64_t row_capacity = 0;  // row numbers, in use or free
  uint64_t segments = 0;
  uint64_t bytes = 0;               // all files of the table in memory, with reserved storage
  uint64_t bytes_on_disk = 0;       // all files of the table on disk
  uint64_t live_bytes_on_disk = 0;  // the part of these that live rows take
  uint64_t rows_to_stage = 0;       // number of rows that can be staged
  OptimizerConfig optimizer;
  OptimizerUse trained_by;
  uint64_t index_seed = 0;
  uint64_t version = 0;         // number of changes outside of steps
  uint64_t evicted_unused = 0;  // rows evicted because no step had trained them
  uint64_t evicted_excess = 0;  // rows evicted because there were too many
  uint64_t admitted = 0;        // rows of keys that occurred often enough
  uint64_t dropped = 0;         // gradients of keys that did not
  std::vector<MetadataPlane> metadata;
};

// ReadView: what Group::Read() passes to its callback. It is a view of the group's memory, in which
// the writer may be active. Read() checks afterwards whether everything was read from one committed
// state, and otherwise calls the callback again. Valid inside of the callback only. Its methods are
// thread-safe.
class ReadView {
 public:
  uint64_t step() const;
  // Distinguishes states: every mutation changes it.
  uint64_t epoch() const;
  // Returns the numbers of all tables, ascending by place.
  std::vector<int> tables() const;
  // Finds keys. rows[i] is the address of the row of keys[i] in its stored type (table/row_type.h),
  // or nullptr if the key is absent. numbers[i] is its row number, or kAbsentRow. Prefetches in
  // batches. During a mutation a present key may look absent; Read() then discards the result and
  // calls the callback again.
  void Find(int table, const int64_t* keys, size_t n, const char** rows,
            uint32_t* numbers = nullptr) const;
  // Finds only the row numbers of keys (kAbsentRow if absent), for example to read slots.
  void FindRows(int table, const int64_t* keys, size_t n, uint32_t* rows) const;
  // Returns the address of a row in its stored type.
  const char* Row(int table, uint32_t row) const;
  // Returns the address of a row's slot, SlotWidth() floats; null if there is no such slot.
  const float* Slot(int table, int slot, uint32_t row) const;
  // Returns the address of a row in a plane of the table's list (table/planes.h); null if there is
  // none.
  const char* Plane(int table, size_t plane, uint32_t row) const;
  // Returns the address of a row in the k-th metadata plane.
  const char* Metadata(int table, size_t k, uint32_t row) const;
  // Returns the figures of a table.
  TableStats Stats(int table) const;
  // Returns the planes of a table; null if they cannot be mapped.
  const PlaneList* Planes(int table) const;
  // Reads the rows on disk of keys that are not in memory. Calls visit(i, payload), on many
  // threads, for each key that has one (table/row_records.h). If `places` is not null, it gets the
  // place of each key's record, kNoRecord for the others; it is empty if no row of the table is on
  // disk.
  Status ReadRecords(int table, const int64_t* keys, size_t n,
                     const std::function<void(size_t i, const char* payload)>& visit,
                     std::vector<uint32_t>* places = nullptr) const;

 private:
  friend class Group;
  friend class GroupWriter;
  friend class Scan;
  friend class TableCheck;
  friend struct ReadViewForTests;
  ReadView(const Group& group, const State& state, const std::vector<MappedTable>& mapped,
           const Overlay* overlay)
      : group_(group), state_(state), mapped_(mapped), overlay_(overlay) {}
  // Returns whether this process has mapped the table. If not, Read() maps it and calls the
  // callback again. Returns false also if the table was removed, has outgrown what this process has
  // mapped of it, or lost its files before this process saw them grow; Read() then fails.
  bool Mapped(int table) const;
  // FindRows of a mapped table, which can also prefetch the rows.
  void Probe(int table, const int64_t* keys, size_t n, uint32_t* rows,
             const tsps::Plane* fetch) const;
  // Makes Read() fail with this status, if everything was read from one state.
  void Fail(Status status) const;
  // Does the same as Mapped(), without a look at the files.
  bool Listed(int table) const;
  bool Has(int table) const;
  // These require a table for which Listed() or Mapped() returned true.
  TableFiles& Files(int table) const;
  const TableState& StateOf(int table) const;
  const Group& group_;
  const State& state_;
  const std::vector<MappedTable>& mapped_;
  const Overlay* overlay_;  // null unless a mutation is unfinished
  mutable std::mutex mutex_;
  mutable Status unmapped_;              // the error of a table that cannot be mapped or is damaged
  mutable std::vector<size_t> missing_;  // places of tables to map
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_READ_VIEW_H_
