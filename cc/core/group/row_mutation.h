// RowMutation: a mutation of rows, for steps, for rows that are set or erased, and for rows of a
// tiered table that leave memory.
//
//   RowMutation mutation(...);
//   mutation.Plan(group, changes)   checks the changes, and finds which keys exist
//   mutation.Reserve()              reserves all storage, and writes the undo log
//   mutation.Write()                writes new rows; then readers wait, and existing rows are
//   written mutation.Publish()              makes all of it visible
//
// Plan and Reserve can fail, and change nothing that readers or a recovery see, except that growth
// of the index, demotions and space in the log of erased keys are committed separately. After them
// nothing can fail.
#ifndef TFSPS_CORE_GROUP_ROW_MUTATION_H_
#define TFSPS_CORE_GROUP_ROW_MUTATION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/group/group_impl.h"
#include "core/group/mutation.h"
#include "core/group/row_plan.h"

namespace tsps {

// Not thread-safe.
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

  // Plans changes that a caller asks for. What `changes` points to must stay until Publish or Undo.
  // The errors are those of GroupWriter::Prepare. InvalidArgument, naming table and key: a key
  // repeats, so its row would be updated twice or become two rows; or a key is both changed and
  // erased. DataLoss: two keys have the same row.
  Status Plan(const Group& group, const RowChanges& changes);
  // Plans that rows in memory move to the disk, in place of Plan. Neither the step nor a version
  // changes.
  Status PlanDemotions(int place, std::vector<int64_t> keys);
  // Reserves storage for new rows, and for their images in the next mutation if it is a step of the
  // same keys: so existing keys can be trained even if there is no more space. Writes the undo log,
  // except the images of rows.
  Status Reserve();
  // Writes everything. Readers wait from here on, or read through the undo log.
  void Write();
  // After Write: records that other groups take part in the decision to publish.
  void Seal(const Sealed& sealed);
  // Leaves a sealed mutation to the next writer, before this one ends.
  void Leave() { mutation_.Leave(); }
  // After Write: makes the mutation visible.
  void Publish();
  // Before Publish: undoes everything that Write wrote, if it was called.
  void Undo();

  bool is_step() const { return step_.has_value(); }
  bool written() const { return written_; }
  bool sealed() const { return sealed_; }
  // Returns the number of erased keys.
  size_t n_erased() const;

 private:
  // --- The request (row_mutation_request.cc). ---
  // Returns the plan of a table; creates it if need be.
  Result<RowPlan*> PlanOf(const Group& group, int table);
  Status CheckStep(const Group& group) const;
  Status AddUpdate(const Group& group, const TableUpdate& update);
  Status AddWrites(const Group& group, const TableWrites& writes);
  Status AddErases(const Group& group, const TableErases& erases);
  // --- Finding rows (row_mutation_plan.cc). ---
  Status PlanTables();
  Status PlanTable(RowPlan& plan);
  // Plans a table whose existing rows are marked, and differ.
  Status PlanUnique(RowPlan& plan);
  // Returns the error that the key at a position has the row of an earlier one.
  Status RepeatedRow(const TableFiles& files, const RowPlan& plan, int64_t repeated) const;
  Status CheckGradients(const RowPlan& plan);
  // Finds the row numbers of a plan's keys.
  Status FindPlanned(const TableFiles& files, const TableState& state, RowPlan& plan);
  // Finds the entries of the keys to erase and to demote. They are searched again after growth of
  // the index, which moves them.
  Status FindErased(RowPlan& plan);
  // Returns whether growth of the index has moved such entries.
  bool ErasedHaveMoved(const RowPlan& plan) const;
  // Returns DataLoss unless a row belongs to the key whose entry leads to it: otherwise an erase
  // would free the row of another key.
  static Status CheckKeyOfRow(const TableFiles& files, const PlaneList& list, int64_t key,
                              uint32_t row);
  Status FindEntries(RowPlan& plan, const std::vector<int64_t>& keys);
  Status CheckErased(const RowPlan& plan) const;
  Status CheckFreshUnique(const RowPlan& plan) const;
  // --- Admission (row_mutation_admit.cc). ---
  // Drops fresh keys of the update that have not occurred often enough, and finds what becomes of
  // their counts.
  Status Admit(RowPlan& plan);
  // Keeps the fresh keys for which `keep` is not 0.
  static void KeepFresh(const std::vector<uint8_t>& keep, RowPlan* plan);
  // Returns the seed of a sketch, whose table has this place.
  uint64_t SketchSeed(int place) const {
    return mutation_.next().tables[static_cast<size_t>(place)].index_seed;
  }
  // Reads lines of a sketch. Lines without a row have no counts.
  Status ReadLines(int place, const std::vector<int64_t>& keys, std::vector<SketchLine>* lines);
  // Plans the writes of all counts.
  Status PlanSketches(const Group& group);
  // --- Eviction (row_mutation_evict.cc). ---
  // Adds the keys that the step evicts to those that it erases.
  Status ChooseEvicted(RowPlan& plan);
  Status TooFewToEvict(const RowPlan& plan, const EvictionPolicy& policy) const;
  const EvictionPolicy* EvictionOf(const RowPlan& plan) const {
    return writer_.memory[static_cast<size_t>(plan.table)].eviction.get();
  }
  // --- Reserving (row_mutation_reserve.cc, row_mutation_undo.cc). ---
  Status CheckMaxRows(const RowPlan& plan) const;
  // Assigns row numbers to the fresh keys: freed ones first, then new ones.
  Status ReserveRows(RowPlan& plan);
  Status ReservePlane(const TableFiles& files, const PlaneList& list, const Plane& plane,
                      uint64_t rows);
  Status ReserveErased(RowPlan& plan);
  Status WriteUndo();
  // --- Rows on disk (row_mutation_tiers.cc). ---
  // Reads the records of fresh keys, and finds those of erased ones.
  Status FetchRecords(RowPlan& plan);
  // Chooses rows to demote, so that the next mutation has space for the rows that it fetches. If
  // this one does not have it, a mutation of its own demotes rows first.
  Demotions::Rows RowsOf(const RowPlan& plan, const PlaneList& list) const;
  Status MakeSpace(RowPlan& plan);
  Status DemoteFirst(RowPlan& plan, size_t n, const std::vector<uint32_t>& kept);
  // Writes the moves of rows to the log on disk. The last thing that can fail.
  Status PrepareMoves(RowPlan& plan);
  void FinishMoves(bool published);
  // Work that a lack of memory or threads may leave undone.
  void AfterMoves(const RowPlan& plan, bool published);
  // Lets the helper thread collapse large files into huge pages.
  void CollapseFiles(const RowPlan& plan);
  // --- Writing (row_mutation_write.cc). ---
  // Writes the initial values of the fresh keys' rows in all planes, while no reader sees the rows.
  void InitializeFresh(const RowPlan& plan);
  // Makes readers wait.
  void Begin();
  // Writes the rows at plan.fresh or plan.existing. The images of existing rows are saved first.
  void WriteRows(const RowPlan& plan, bool fresh);
  void UpdateRows(const RowPlan& plan, const uint32_t* positions, size_t n, bool fresh);
  void SetRows(const RowPlan& plan, const uint32_t* positions, size_t n, bool fresh);
  // Adds the fresh keys to the index, and removes erased ones.
  void WriteIndex();
  // Adds the fresh keys whose segments belong to a share of the index.
  void InsertFresh(const RowPlan& plan, size_t share, size_t shares);
  void EraseEntries(const RowPlan& plan);
  // Sets what the committed state becomes.
  void WriteState();

  // Calls body(plan) for all plans: those of many rows one after another, small ones in parallel.
  void ForEachPlan(const std::function<void(RowPlan& plan)>& body);
  RowPlanes Planes(const RowPlan& plan) const;
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
  std::optional<uint64_t> step_;
  OptimizerUse optimizer_;
  std::vector<RowPlan> plans_;  // one per table
  bool only_demotes_ = false;
  bool written_ = false;
  bool sealed_ = false;
};

// Lets the copies that compaction has written take effect, in a mutation of its own. If all steps
// fail because a disk is full, this frees space.
void PlaceCopies(Group::Impl& group, GroupWriter::Impl& writer);

// Moves all rows of a tiered table to the disk, in mutations of their own.
Status DemoteAll(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters, int place);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_MUTATION_H_
