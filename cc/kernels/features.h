// Parts that the lookup kernels and their gradients share: the features of each table, the unique
// keys of a call, and the read of their rows.
#ifndef TFSPS_KERNELS_FEATURES_H_
#define TFSPS_KERNELS_FEATURES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/gradients/bags.h"
#include "core/gradients/segment_sum.h"
#include "core/group/row_gather.h"
#include "kernels/group_registry.h"
#include "kernels/tensors.h"

namespace tsps {

// The attributes N, T, table_of and, for pooled ops, combiners.
struct Features {
  int n = 0;  // features
  int tables = 0;
  std::vector<int> table_of;                  // of each feature
  std::vector<std::vector<int>> features_of;  // of each table
  std::vector<Combiner> combiners;

  Status Init(const Attributes& attributes, bool pooled);
  // Returns the item of the feature's table.
  template <typename Item>
  const Item& In(const std::vector<Item>& per_table, int feature) const {
    return per_table[static_cast<size_t>(table_of[static_cast<size_t>(feature)])];
  }
  template <typename Item>
  Item& In(std::vector<Item>& per_table, int feature) const {
    return per_table[static_cast<size_t>(table_of[static_cast<size_t>(feature)])];
  }
  // Returns the last dimension of the gradients (one per feature) of a table's features; 0 if the
  // table has no feature. InvalidArgument: they differ.
  Result<int64_t> CommonWidth(int table, const std::vector<Tensor>& grads) const;
};

// The ids of a call's features, deduped per table.
class UniqueKeys {
 public:
  // Reads the ids of the features from input 0 on. Writes the keys to outputs `keys` on, and the
  // inverses to outputs `inverses` on. Refuses ids that are out of a table's range, and names
  // table, feature, position, id and limit.
  //
  // With `in_step` the next step may report the error instead (OpenGroup::Object). Then *refused is
  // set, and the caller outputs zeros.
  Status Init(const KernelContext& context, const Features& features,
              const std::vector<TableHandle>& tables, int keys, int inverses, Executor& executor,
              bool in_step, bool* refused);
  // Does the same without tables, and accepts any key. `name` returns a table's name for messages.
  Status Dedupe(const KernelContext& context, const Features& features, int keys, int inverses,
                const std::function<std::string(size_t table)>& name, Executor& executor);

  const Tensor& ids(int feature) const { return ids_[static_cast<size_t>(feature)]; }
  const int32_t* inverse(int feature) const {
    return inverses_[static_cast<size_t>(feature)].data<int32_t>();
  }
  // Returns a gather for each table. The gathers point to the keys in this object.
  std::vector<RowGather> Gathers(const std::vector<TableHandle>& tables) const;
  // Gives the keys and the row numbers that `gathers` found to the group's writer, if it is in this
  // process. The keys must not be used afterwards.
  void Remember(const std::vector<TableHandle>& tables, std::vector<RowGather>& gathers);

 private:
  std::vector<Tensor> ids_, inverses_;
  std::vector<std::vector<int64_t>> keys_;
};

// Allocates output `feature`: the rows of a feature's ids, float[*ids.shape, dim].
Result<Tensor> OutputRows(const KernelContext& context, int feature, const Tensor& ids,
                          const TableHandle& table);

// Returns the error of a lookup of a training step that failed and whose step was not made
// (OpenGroup::Object), or OK. Lookups outside of training steps call it first. `table` is one of
// the lookup.
Status ReportObjection(const TableHandle& table);

// Refuses ids that are out of their table's range. Names table, feature, position, id and limit.
Status CheckIds(const Features& features, const std::vector<TableHandle>& tables,
                const std::vector<Tensor>& ids);

// Refuses positions outside [0, n_keys).
Status CheckInverse(const Tensor& inverse, size_t n_keys, int feature);

// Refuses carriers (inputs `carriers` on) whose width is not the table's, and tables of which this
// node has only a part of the rows.
Status CheckCarriers(const KernelContext& context, const std::vector<TableHandle>& tables,
                     int carriers);

// The splits, weights and combiner of a feature: its bags, except for `inverse`. Owns the tensors.
struct Bags {
  Tensor splits, weights;
  BagSpan span;

  // Reads the inputs of a feature. Weights are float[n_items], or float[0] if all are 1.
  static Result<Bags> Read(const KernelContext& context, const Features& features, int feature,
                           int splits, int weights, size_t n_items);
};

// Finds the rows of all gathers as of one committed state, and calls read(i) for the i-th gather.
// Repeats the calls if the writer changed the state meanwhile. Runs small gathers in parallel.
// `tables` are those of the gathers, all of one group.
Status ReadRows(const std::vector<TableHandle>& tables, std::vector<RowGather>& gathers,
                Executor& executor, const std::function<void(size_t gather)>& read);

}  // namespace tsps

#endif  // TFSPS_KERNELS_FEATURES_H_
