// Mutations of rows: steps, and rows that are set.
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
  // --- Of each fresh key. ---
  std::vector<uint32_t> places;  // of its record; kNoRecord: it has none. Perhaps of a look-up's
  std::vector<char> payloads;    // of the records; payload_bytes each
  size_t payload_bytes = 0;
  // --- ---
  std::vector<int64_t> erased;  // keys that are erased from the disk
  std::vector<uint32_t> erased_places;
  std::vector<int64_t> going;  // keys of rows in memory that go to the disk
  size_t n_going = 0;          // of them that have been found
  bool prepared = false;

  size_t n_coming() const {
    return places.size() - static_cast<size_t>(std::count(places.begin(), places.end(), kNoRecord));
  }

  // The record of the k-th fresh key; null: it has none.
  const char* Record(size_t k) const {
    return k < places.size() && places[k] != kNoRecord ? payloads.data() + k * payload_bytes
                                                       : nullptr;
  }
};

// What a mutation does to the rows of one table: which keys are there, which are new, and where
// they go.
struct RowPlan {
  int table = 0;  // its place
  const int64_t* keys = nullptr;
  size_t n = 0;
  std::vector<int64_t> joined;  // the keys, if they come from several places
  size_t updates = 0;           // the first ones are updated, the others set
  size_t planes = 0;  // that are changed of rows that are there: the first ones of the table's list
  std::vector<uint32_t> rows;      // row number of each key, new ones included
  std::vector<uint32_t> existing;  // positions in keys
  std::vector<uint32_t> fresh;     // positions in keys
  RowMoves moves;
  // --- Rows that are taken away. ---
  std::vector<int64_t> erase_keys;  // unique, some perhaps absent
  std::vector<ErasedEntry> erased;  // of rows in memory; and then of those that go to the disk
  std::vector<uint32_t> erased_rows;
  uint64_t reused = 0;  // of the free rows: as many are taken from the end of the stack
};

// Where the first n planes of a table lie, for loops over many of its rows (the embedding is plane
// 0, the slots are 1 ..), the rows' keys and their change generations.
struct RowPlanes {
  // Rows fetched ahead of the one at work: they are scattered, and the table is larger than any
  // cache.
  static constexpr size_t kAhead = 16;

  RowPlanes(const PlaneList& list, size_t n, uint32_t generation);

  char* at(int plane, uint32_t row) const { return base[plane] + row * bytes[plane]; }
  float* floats(int plane, uint32_t row) const { return reinterpret_cast<float*>(at(plane, row)); }
  void Prefetch(int plane, uint32_t row) const { tsps::Prefetch(at(plane, row), bytes[plane]); }
  // For Touch().
  void PrefetchChanged(uint32_t row) const { __builtin_prefetch(&changed[row]); }
  // The row is being written. Of a new row when its key is in the index: until then it is free.
  // Most rows of a step were written in this generation before, and their cache lines stay clean.
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
        mutation_(group, writer) {}
  ~RowMutation() { FinishMoves(/*published=*/false); }
  // Announces changes to rows of the table in a place, of `n` keys, at most 2^31 - 1: what steps
  // change, once for a table, first; other values, in the first `planes` planes of its list; that
  // they are taken away.
  void AddUpdates(int place, const int64_t* keys, size_t n);
  void AddWrites(int place, const int64_t* keys, size_t n, size_t planes);
  void AddErases(int place, const int64_t* keys, size_t n);
  // Rows that go to the disk; of a table that nothing else is done to.
  void AddGoing(int place, std::vector<int64_t> keys);
  // Finds out which of the keys are there; calls also(p) for every plan p on the way.
  // InvalidArgument, naming table and key, if a key repeats: its row would be updated twice, or be
  // two rows; or if it is changed and taken away. DataLoss if two keys have one row.
  Status Plan(const std::function<void(size_t p)>& also = nullptr);
  // Whether some key is not there.
  bool HasFresh() const;
  // How many keys are erased.
  size_t n_erased() const;
  static size_t n_erased(const RowPlan& plan);
  // Storage for new rows, and for their images in the next mutation, if it is a step of the same
  // keys: trained keys can then be trained on where there is no room any more. The undo log, but
  // for the images of rows.
  Status Prepare(bool is_step);
  std::vector<RowPlan>& plans() { return plans_; }
  State& next() { return mutation_.next(); }

  RowPlanes Planes(const RowPlan& plan) const;
  // Calls body(p) for every plan p, plans of many rows one by one and small ones side by side.
  void ForEachPlan(const std::function<void(size_t p)>& body);
  // Writes what a new row has in all planes, for the fresh keys. Before Begin: nobody sees them
  // yet. `set`: the planes, by their places in the table's list, that the caller writes of keys
  // behind the updates: drawing a row takes longer than copying one.
  void InitializeFresh(const RowPlan& plan, const std::vector<size_t>& set);

  void Begin();
  // Images of the rows of one block of plan p's existing keys (kUndoBlock of them), before any of
  // these rows is written.
  void SaveImages(size_t p, size_t block);
  // Adds the fresh keys to the index, and takes erased ones out of it.
  void WriteIndex();
  void Seal(const Sealed& sealed) { mutation_.Seal(sealed); }
  void Leave() { mutation_.Leave(); }
  void Publish();
  // Before Publish: puts everything back that was written since Begin, if that was called.
  void Undo();

 private:
  RowPlan& PlanOf(int place);
  Status PlanTable(RowPlan& plan);
  // The row numbers of its keys.
  Status FindPlanned(const TableFiles& files, const TableState& state, RowPlan& plan);
  // Where the entries of the keys to erase are: growth of the index moves them.
  Status FindErased(RowPlan& plan);
  Status FindEntries(RowPlan& plan, const std::vector<int64_t>& keys);
  Status CheckErased(const RowPlan& plan) const;
  // --- Rows on disk (row_mutation_tiers.cc). ---
  // Reads the records of fresh keys, and finds those of erased ones.
  Status FetchRecords(RowPlan& plan);
  // Chooses rows that go, so that there is room for the rows that come next time. Moves out others,
  // in a mutation of their own, if there is none for those that come now.
  Evictions::Rows RowsOf(const RowPlan& plan, const PlaneList& list) const;
  Status MakeRoom(RowPlan& plan);
  Status GoFirst(RowPlan& plan, size_t n, const std::vector<uint32_t>& kept);
  // The last thing that can fail.
  Status PrepareMoves(RowPlan& plan);
  void FinishMoves(bool published);
  // What a lack of memory or threads may leave undone.
  void AfterMoves(const RowPlan& plan, bool published);
  // Large files into huge pages, in the background.
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
  std::vector<UndoRecordHeader*> images_;  // by plan; null: no row that is there is written
};

// Moves all rows of a tiered table to the disk, in mutations of their own.
Status MoveAllOut(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
                  int place);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_MUTATION_H_
