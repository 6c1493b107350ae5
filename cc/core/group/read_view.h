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
struct PlaneList;
struct State;
struct TableState;

// A table as of one committed state.
struct TableStats {
  uint64_t rows = 0;  // live keys, those on disk included
  uint64_t rows_on_disk = 0;
  uint64_t row_capacity = 0;  // row numbers handed out, free ones included
  uint64_t segments = 0;
  uint64_t bytes = 0;               // all files of the table in memory, reserved storage included
  uint64_t bytes_on_disk = 0;       // all files there
  uint64_t live_bytes_on_disk = 0;  // what the rows take of these
  uint64_t rows_to_stage = 0;       // how many rows can be read ahead of their need
  OptimizerConfig optimizer;
  OptimizerUse trained_by;
  uint64_t index_seed = 0;
  uint64_t version = 0;  // changes so far that were no steps
  std::vector<MetadataPlane> metadata;
};

// What Group::Read() hands to its callback: a view of the group's memory, in which the writer may
// be at work. Read() finds out afterwards whether all that was read is of one committed state, and
// runs the callback again if not. Valid inside the callback only.
class ReadView {
 public:
  uint64_t step() const;
  // Tells states apart: another one after each mutation.
  uint64_t epoch() const;
  // Their numbers, ascending by place.
  std::vector<int> tables() const;
  // rows[i] = address of the row of keys[i], as it is stored (table/row_type.h), or nullptr when
  // the key is absent; numbers[i] its row number, or kAbsentRow. Prefetches in batches. While a
  // mutation runs a key that is there may look absent: Read() then throws away what its callback
  // made, and calls it again.
  void Find(int table, const int64_t* keys, size_t n, const char** rows,
            uint32_t* numbers = nullptr) const;
  // The same for row numbers (kAbsentRow when absent), to read slots by.
  void FindRows(int table, const int64_t* keys, size_t n, uint32_t* rows) const;
  const char* Row(int table, uint32_t row) const;
  // SlotWidth() floats.
  const float* Slot(int table, int slot, uint32_t row) const;
  // Of any plane, in the order of the table's list (table/planes.h). Null when there is none.
  const char* Plane(int table, size_t plane, uint32_t row) const;
  // Of the k-th metadata plane.
  const char* Metadata(int table, size_t k, uint32_t row) const;
  // Calls visit(key, row) for every live key, in the index's order.
  void ForEach(int table, const std::function<void(int64_t key, uint32_t row)>& visit) const;
  TableStats Stats(int table) const;
  // Null if they cannot be mapped.
  const PlaneList* Planes(int table) const;
  // Of keys that are not found: calls visit(i, payload), on many threads, for those that have a row
  // on disk (table/row_records.h). `places`, unless null: of their records, kNoRecord for the
  // others; empty if no row of the table is on disk.
  Status ReadRecords(int table, const int64_t* keys, size_t n,
                     const std::function<void(size_t i, const char* payload)>& visit,
                     std::vector<uint32_t>* places = nullptr) const;

 private:
  friend class Group;
  friend class GroupWriter;
  friend class Scan;
  friend class TableCheck;
  ReadView(const Group& group, const State& state, const std::vector<MappedTable>& mapped,
           const Overlay* overlay)
      : group_(group), state_(state), mapped_(mapped), overlay_(overlay) {}
  // False if this process has not mapped the table, which Read() then does, and calls its callback
  // again. False, too, if the table has been removed, if it has outgrown what this process has
  // mapped of it, or if its files were removed before this process looked at the end of them:
  // Read() then fails.
  bool Mapped(int table) const;
  // As FindRows, and into the caches with the rows.
  void Probe(int table, const int64_t* keys, size_t n, uint32_t* rows, bool fetch) const;
  // Read() fails, if what has been read is of one state.
  void Fail(Status status) const;
  // The same, without a look at the files.
  bool Listed(int table) const;
  bool Has(int table) const;
  // Of a table that is Listed(), or Mapped().
  TableFiles& Files(int table) const;
  const TableState& StateOf(int table) const;
  const Group& group_;
  const State& state_;
  const std::vector<MappedTable>& mapped_;
  const Overlay* overlay_;  // null unless the writer died in a mutation
  mutable std::mutex mutex_;
  mutable Status unmapped_;              // of a table that is not Mapped(), or damaged
  mutable std::vector<size_t> missing_;  // places of tables that were asked for and are not mapped
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_READ_VIEW_H_
