// RowMutation: a mutation of rows, for steps and for rows that are set or erased.
#ifndef TFSPS_CORE_GROUP_ROW_MUTATION_H_
#define TFSPS_CORE_GROUP_ROW_MUTATION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/executor.h"
#include "core/base/prefetch.h"
#include "core/base/status.h"
#include "core/group/group_impl.h"
#include "core/group/mutation.h"
#include "core/table/index.h"
#include "core/table/row_optimizer.h"

namespace tsps {

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
  std::vector<int64_t> evicted;  // keys of rows in memory that move to the disk
  size_t n_evicted = 0;          // number of them that were found
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

// The changes of a mutation to the rows of one table: which keys exist, which are new, and their
// row numbers.
struct RowPlan {
  int table = 0;  // the table's place
  const int64_t* keys = nullptr;
  size_t n = 0;
  std::vector<int64_t> joined;  // the keys, if they come from several places
  size_t updates = 0;           // the number of keys that are updated; the following keys are set
  size_t planes = 0;  // number of planes, from the list's first on, that change in existing rows
  std::vector<uint32_t> rows;      // row number of each key, new ones included
  std::vector<uint32_t> existing;  // positions in keys
  std::vector<uint32_t> fresh;     // positions in keys
  RowMoves moves;
  // --- Rows that leave memory. ---
  std::vector<int64_t> erase_keys;  // unique; some may be absent
  std::vector<ErasedEntry> erased;  // entries of erased rows in memory, then of evicted rows
  std::vector<uint32_t> erased_rows;
  uint64_t reused = 0;  // number of free rows that are taken from the end of the stack
};

// The addresses of the first n planes of a table, of the rows' keys and of their change
// generations, for loops over many rows. The embedding is plane 0, and the slots are 1 ...
struct RowPlanes {
  // How many rows are prefetched ahead of the current one: they are scattered, and the table is
  // larger than any cache.
  static constexpr size_t kAhead = 16;

  RowPlanes(const PlaneList& list, size_t n, uint32_t generation);

  char* at(int plane, uint32_t row) const { return base[plane] + row * bytes[plane]; }
  float* floats(int plane, uint32_t row) const { return reinterpret_cast<float*>(at(plane, row)); }
  void Prefetch(int plane, uint32_t row) const { tsps::Prefetch(at(plane, row), bytes[plane]); }
  // Prefetches the change generation for Touch().
  void PrefetchChanged(uint32_t row) const { __builtin_prefetch(&changed[row]); }
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

// A mutation of rows, in three phases. Plan and Prepare can fail, and change nothing that readers
// or a recovery see, except that growth of the index is committed separately. Between Begin and
// Publish nothing can fail. Not thread-safe.
class RowMutation {
 public:
  RowMutation(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
              Executor& executor)
      : group_(group),
        writer_(writer),
        counters_(counters),
        executor_(executor),
        mutation_(group, writer) {}
  ~RowMutation() { FinishMoves(/*published=*/false); }
  // Add changes to rows of the table in a place, with `n` keys, at most 2^31 - 1. AddUpdates adds
  // those of a step; it must be called first, and once per table. AddWrites adds values for the
  // first `planes` planes of the table's list. AddErases adds keys to remove.
  void AddUpdates(int place, const int64_t* keys, size_t n);
  void AddWrites(int place, const int64_t* keys, size_t n, size_t planes);
  void AddErases(int place, const int64_t* keys, size_t n);
  // Adds rows in memory that move to the disk. The table may have no other changes.
  void AddEvictions(int place, std::vector<int64_t> keys);
  // Finds out which keys exist. Calls visit(p) for every plan p meanwhile. InvalidArgument, naming
  // table and key: a key repeats, so its row would be updated twice or become two rows; or a key is
  // both changed and erased. DataLoss: two keys have the same row.
  Status Plan(const std::function<void(size_t p)>& visit = nullptr);
  // Returns whether the table lacks any of the keys.
  bool HasFresh() const;
  // Returns the number of erased keys.
  size_t n_erased() const;
  static size_t n_erased(const RowPlan& plan);
  // Reserves storage for new rows, and for their images in the next mutation if it is a step of the
  // same keys: so existing keys can be trained even if there is no more space. Writes the undo log,
  // except the images of rows.
  Status Prepare(bool is_step);
  std::vector<RowPlan>& plans() { return plans_; }
  State& next() { return mutation_.next(); }

  RowPlanes Planes(const RowPlan& plan) const;
  // Calls body(p) for every plan p: plans of many rows one after another, small ones in parallel.
  void ForEachPlan(const std::function<void(size_t p)>& body);
  // Writes the initial values of the fresh keys' rows in all planes. Must be called before Begin,
  // while no reader sees the rows. `set` has the planes, by their positions in the table's list,
  // that the caller writes for keys after the updates: drawing a row takes longer than copying one.
  void InitializeFresh(const RowPlan& plan, const std::vector<size_t>& set);

  // Makes readers wait.
  void Begin();
  // Saves the images of one block (kUndoBlock rows) of plan p's existing keys. Must be called
  // before any of these rows is written.
  void SaveImages(size_t p, size_t block);
  // Adds the fresh keys to the index and removes erased ones.
  void WriteIndex();
  void Seal(const Sealed& sealed) { mutation_.Seal(sealed); }
  void Leave() { mutation_.Leave(); }
  // Makes the mutation visible.
  void Publish();
  // Before Publish: undoes everything that was written since Begin, if Begin was called.
  void Undo();

 private:
  RowPlan& PlanOf(int place);
  Status PlanTable(RowPlan& plan);
  // Finds the row numbers of a plan's keys.
  Status FindPlanned(const TableFiles& files, const TableState& state, RowPlan& plan);
  // Finds the entries of the keys to erase and to evict. They are searched again after growth of
  // the index, which moves them.
  Status FindErased(RowPlan& plan);
  Status FindEntries(RowPlan& plan, const std::vector<int64_t>& keys);
  Status CheckErased(const RowPlan& plan) const;
  // --- Rows on disk (row_mutation_tiers.cc). ---
  // Reads the records of fresh keys, and finds those of erased ones.
  Status FetchRecords(RowPlan& plan);
  // Chooses rows to evict, so that the next mutation has space for the rows that it fetches. If
  // this one does not have it, a mutation of its own evicts rows first.
  Evictions::Rows RowsOf(const RowPlan& plan, const PlaneList& list) const;
  Status MakeSpace(RowPlan& plan);
  Status EvictFirst(RowPlan& plan, size_t n, const std::vector<uint32_t>& kept);
  // Writes the moves of rows to the log on disk. The last thing that can fail.
  Status PrepareMoves(RowPlan& plan);
  void FinishMoves(bool published);
  // Work that a lack of memory or threads may leave undone.
  void AfterMoves(const RowPlan& plan, bool published);
  // Lets the helper thread collapse large files into huge pages.
  void CollapseFiles(const RowPlan& plan);
  Status ReserveErased(RowPlan& plan);
  void EraseEntries(const RowPlan& plan);
  Status CheckFreshUnique(const RowPlan& plan) const;
  Status CheckMaxRows(const RowPlan& plan) const;
  Status ReserveRows(RowPlan& plan);
  Status ReserveRowsOf(const TableFiles& files, const PlaneList& list, const Plane& plane,
                       uint64_t rows);
  Status WriteUndo(bool is_step);
  const TableState& StateOf(const RowPlan& plan) const {
    return mutation_.next().tables[static_cast<size_t>(plan.table)];
  }
  TableState& StateOf(const RowPlan& plan) {
    return mutation_.next().tables[static_cast<size_t>(plan.table)];
  }

  Group::Impl& group_;
  GroupWriter::Impl& writer_;
  GroupCounters& counters_;
  Executor& executor_;
  Mutation mutation_;
  std::vector<RowPlan> plans_;
  std::vector<UndoRecordHeader*> images_;  // by plan; null: no existing row is written
};

// Moves all rows of a tiered table to the disk, in mutations of their own.
Status EvictAll(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters, int place);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_MUTATION_H_
