// RowPlan: what a mutation does to the rows of one table.
#ifndef TFSPS_CORE_GROUP_ROW_PLAN_H_
#define TFSPS_CORE_GROUP_ROW_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/base/executor.h"
#include "core/base/prefetch.h"
#include "core/group/group.h"
#include "core/group/undo_log.h"
#include "core/table/index.h"
#include "core/table/planes.h"
#include "core/tier/record_store.h"

namespace tsps {

// Finds the gradient of a key by its position among an update's keys.
class GradientRows {
 public:
  GradientRows(const TableUpdate& update, size_t dim);
  // Returns the gradient of the i-th key.
  const float* at(size_t i) const;
  // Returns the position of the first gradient that is not finite, or -1, as FirstNonFiniteRow
  // does.
  int64_t FirstNonFinite(Executor& executor) const;

 private:
  const size_t dim_;
  std::vector<TableUpdate::Piece> pieces_;
  std::vector<size_t> ends_;  // the end of each piece, among the update's keys
};

// How rows move between the tiers of a table, if it has two.
struct RowMoves {
  RecordStore* store = nullptr;  // null: all rows are in memory
  // --- For each fresh key. ---
  std::vector<uint32_t> places;  // of its record, perhaps from a lookup; kNoRecord: it has none
  std::vector<char> payloads;    // of the records, payload_bytes each
  size_t payload_bytes = 0;
  // --- For other keys. ---
  std::vector<int64_t> erased;  // erased keys whose rows are on disk
  std::vector<uint32_t> erased_places;
  std::vector<int64_t> demoted;  // keys of rows in memory that move to the disk
  size_t n_demoted = 0;          // number of them that were found
  bool prepared = false;

  // Returns the number of rows that come from the disk.
  size_t n_fetched() const {
    return places.size() - static_cast<size_t>(std::count(places.begin(), places.end(), kNoRecord));
  }

  // Returns the record of the k-th fresh key; null if it has none.
  const char* Record(size_t k) const {
    return k < places.size() && places[k] != kNoRecord ? payloads.data() + k * payload_bytes
                                                       : nullptr;
  }
};

struct RowPlan {
  // The update that a step makes.
  struct Update {
    TableUpdate request;
    GradientRows gradients;
    OptimizerKind kind;
  };

  size_t n_updates() const { return update.has_value() ? update->request.n : 0; }
  // Returns the number of erased keys, on disk or in memory.
  size_t n_erased() const { return erased.size() - moves.n_demoted + moves.erased.size(); }

  int table = 0;  // the table's place
  // --- The request. A plan that only demotes rows has none. ---
  std::optional<Update> update;
  std::optional<TableWrites> writes;
  std::vector<size_t> written_planes;  // positions in the table's list of the planes of `writes`
  bool erases = false;
  std::vector<int64_t> erase_keys;  // unique; some may be absent
  // --- The keys to change: those of the update, then those of the writes. ---
  const int64_t* keys = nullptr;
  size_t n = 0;
  std::vector<int64_t> joined;  // the keys, if they come from several places
  // --- Keys of the update that get no row; their numbers stay kAbsentRow. ---
  uint64_t n_dropped = 0;
  uint64_t n_admitted = 0;
  std::vector<uint32_t> changed_rows;    // `rows` without those, if there are any
  std::vector<int64_t> sketch_keys;      // lines of the sketch to write
  std::vector<SketchLine> sketch_lines;  // what they become
  size_t planes = 0;  // number of planes, from the list's first on, that change in existing rows
  std::vector<uint32_t> rows;      // row number of each key, new ones included
  std::vector<uint32_t> existing;  // positions in keys
  std::vector<uint32_t> fresh;     // positions in keys
  RowMoves moves;
  uint64_t reused = 0;  // number of free rows that are taken from the end of the stack
  // --- Rows that leave memory: those that are erased, then those that are demoted. ---
  std::vector<ErasedEntry> erased;
  std::vector<uint32_t> erased_rows;
  uint64_t n_unused = 0;  // number of erased keys that are evicted because they were not used
  uint64_t n_excess = 0;  // number of those that are evicted because there are too many rows
  // --- The images of existing rows in the undo log; null: no existing row is written. ---
  UndoRecordHeader* images = nullptr;
};

// Plans point into vectors of plans, which a vector of plans must not copy.
static_assert(std::is_nothrow_move_constructible_v<RowPlan>);

// The addresses of the first n planes of a table, of the rows' keys and of their change
// generations, for loops over many rows. The embedding is plane 0, and the slots are 1 ...
struct RowPlanes {
  RowPlanes(const PlaneList& list, size_t n, uint32_t generation);

  char* at(int plane, uint32_t row) const { return base[plane] + row * bytes[plane]; }
  float* floats(int plane, uint32_t row) const { return reinterpret_cast<float*>(at(plane, row)); }
  void Prefetch(int plane, uint32_t row) const { tsps::Prefetch(at(plane, row), bytes[plane]); }
  // Prefetches the change generation for Touch().
  void PrefetchChanged(uint32_t row) const { PrefetchLine(&changed[row]); }
  // Records that the row is written. For a new row it must be called when its key is in the index,
  // because the row counts as free until then. Most rows of a step were written in this generation
  // before, and their cache lines stay clean.
  void Touch(uint32_t row) const {
    if (LoadRelaxed(changed[row]) != changes) StoreRelaxed(changed[row], changes);
  }

  const PlaneList& list;
  char* base[kMaxPlanes] = {};
  size_t bytes[kMaxPlanes] = {};
  int n = 0;
  int64_t* keys;
  uint32_t* changed;
  uint32_t changes;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_PLAN_H_
