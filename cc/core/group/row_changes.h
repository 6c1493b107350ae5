// PreparedChanges: changes of rows between the calls of GroupWriter (Prepare, Write, Publish).
#ifndef TFSPS_CORE_GROUP_ROW_CHANGES_H_
#define TFSPS_CORE_GROUP_ROW_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/row_mutation.h"
#include "core/table/row_updater.h"

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

// The methods are those of GroupWriter with the same names. Not thread-safe.
class PreparedChanges {
 public:
  PreparedChanges(Group::Impl& group, GroupWriter::Impl& writer, GroupCounters& counters,
                  Executor& executor)
      : group_(group),
        writer_(writer),
        counters_(counters),
        executor_(executor),
        mutation_(group, writer, counters, executor) {}

  Status Prepare(const Group& group, const RowChanges& changes);
  void Write();
  void Seal(const Sealed& sealed);
  // Leaves a sealed change to the next writer, before this one ends.
  void Leave() { mutation_.Leave(); }
  void Publish();
  void Abort() { mutation_.Undo(); }

  bool is_step() const { return step_.has_value(); }
  bool written() const { return written_; }
  bool sealed() const { return sealed_; }
  size_t n_erased() const { return mutation_.n_erased(); }

 private:
  // The changes of one table's rows. Its number is that of the mutation's plan for the table.
  struct Part {
    int table;  // the table's place
    OptimizerKind kind = OptimizerKind::kNone;
    std::vector<TableUpdate> update = {};  // at most one
    std::vector<GradientRows> gradients = {};
    std::vector<TableWrites> writes = {};  // at most one
    std::vector<size_t> planes = {};  // positions in the table's list of the planes of `writes`
    bool erases = false;
  };

  // Returns the part of a table; creates it if need be.
  Result<Part*> PartOf(const Group& group, int table);
  Status AddUpdate(const Group& group, const TableUpdate& update);
  Status AddWrites(const Group& group, const TableWrites& writes);
  Status AddErases(const Group& group, const TableErases& erases);
  // Write the rows of the plan's fresh keys, or of its existing ones, whose images are saved first:
  // updates and writes.
  void WriteRows(size_t p, bool fresh);
  void UpdateRows(size_t p, const uint32_t* positions, size_t n, bool fresh);
  void SetRows(size_t p, const uint32_t* positions, size_t n, bool fresh);

  Group::Impl& group_;
  GroupWriter::Impl& writer_;
  GroupCounters& counters_;
  Executor& executor_;
  std::optional<uint64_t> step_;
  OptimizerUse optimizer_;
  std::vector<Part> parts_;
  RowMutation mutation_;
  bool written_ = false;
  bool sealed_ = false;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_CHANGES_H_
