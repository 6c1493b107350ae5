// The update rules, each fused into one pass over a row and its slots.
#ifndef TFSPS_CORE_TABLE_ROW_UPDATER_H_
#define TFSPS_CORE_TABLE_ROW_UPDATER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

// Updates rows in place: applies the rule, then the constraint, if there is one. It precomputes
// what is the same for all rows (Adam's bias-corrected rate), so make one per step and table.
// Thread-safe.
class RowUpdater {
 public:
  // `hyper` must have passed ValidateHyper().
  RowUpdater(OptimizerKind kind, size_t dim, const float* hyper, size_t n_hyper);
  // Updates a row of `dim` floats. `slots` has SlotCount(kind) pointers to SlotWidth() floats each.
  // The arrays must not overlap.
  void Update(const float* gradient, float* row, float* const* slots) const;

 private:
  void Apply(const float* gradient, float* row, float* const* slots) const;
  void Constrain(float* row) const;

  OptimizerKind kind_;
  ConstraintKind constraint_ = ConstraintKind::kNone;
  float limits_[4] = {};  // min_value, max_value, rate, epsilon
  size_t dim_;
  float hyper_[8];
};

// Updates rows in the type of their table: 16-bit rows are widened, updated and rounded. Not
// thread-safe.
class StoredRowUpdater {
 public:
  // `table` must outlive this.
  StoredRowUpdater(const TableConfig& table, OptimizerKind kind, const float* hyper, size_t n_hyper,
                   uint64_t step)
      : table_(table),
        step_(step),
        updater_(kind, static_cast<size_t>(table.dim), hyper, n_hyper),
        values_(IsNarrow(table.row_type) ? static_cast<size_t>(table.dim) : 0) {}

  // Updates the row of `key`, with the other arguments of RowUpdater::Update.
  void Update(int64_t key, const float* gradient, char* row, float* const* slots) {
    if (values_.empty()) return updater_.Update(gradient, reinterpret_cast<float*>(row), slots);
    UpdateNarrow(key, gradient, row, slots);
  }

 private:
  void UpdateNarrow(int64_t key, const float* gradient, char* row, float* const* slots);

  const TableConfig& table_;
  const uint64_t step_;
  const RowUpdater updater_;
  std::vector<float> values_;  // the widened row
};

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_UPDATER_H_
