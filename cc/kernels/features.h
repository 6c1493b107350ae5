// What the lookup kernels and their gradients share: which feature belongs to which table, and the
// unique keys of a call.
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
  std::vector<int> table_of;  // of each feature
  std::vector<Combiner> combiners;

  Status Init(const Attributes& attributes, bool pooled);
  // The item that belongs to the feature's table.
  template <typename Item>
  const Item& In(const std::vector<Item>& per_table, int feature) const {
    return per_table[static_cast<size_t>(table_of[static_cast<size_t>(feature)])];
  }
  template <typename Item>
  Item& In(std::vector<Item>& per_table, int feature) const {
    return per_table[static_cast<size_t>(table_of[static_cast<size_t>(feature)])];
  }
  // The features of each table.
  std::vector<std::vector<int>> ByTable() const;
  // Last dimension of the gradients (one per feature) of a table's features; 0 if it has no
  // feature.
  Result<int64_t> CommonWidth(int table, const std::vector<Tensor>& grads) const;
};

// The ids of a call's features, deduped per table.
class UniqueKeys {
 public:
  // Reads the features' ids from input 0 on and writes keys and inverses to outputs `keys` and
  // `inverses` on. Refuses keys outside bounded tables, naming table, feature, position, key and
  // limit.
  //
  // With `in_step` a refusal may be left to the step that follows (OpenGroup::Object): *refused is
  // set, and the caller outputs zeros.
  Status Init(const KernelContext& context, const Features& features,
              const std::vector<TableHandle>& tables, int keys, int inverses, Executor& executor,
              bool in_step, bool* refused);
  // The same without tables: any key is one. `name` says for messages which table it is.
  Status Dedupe(const KernelContext& context, const Features& features, int keys, int inverses,
                const std::function<std::string(size_t table)>& name, Executor& executor);

  const Tensor& ids(int feature) const { return ids_[static_cast<size_t>(feature)]; }
  const int32_t* inverse(int feature) const {
    return inverses_[static_cast<size_t>(feature)].data<int32_t>();
  }
  // One for each table; they point to the keys held here.
  std::vector<RowGather> Gathers(const std::vector<TableHandle>& tables) const;
  // Hands the keys, with the row numbers that `gathers` have found, to the groups' writer, if it is
  // in this process. Nobody uses the keys after that.
  void Remember(const std::vector<TableHandle>& tables, std::vector<RowGather>& gathers);

 private:
  Status WithPosition(const Status& error, const Features& features, int table,
                      const TableHandle& handle) const;

  std::vector<Tensor> ids_, inverses_;
  std::vector<std::vector<int64_t>> keys_;
};

// Refuses positions outside [0, n_keys).
Status CheckInverse(const Tensor& inverse, size_t n_keys, int feature);

// Refuses carriers (inputs `carriers` on) whose width is not the table's, and tables that have a
// part of their rows alone.
Status CheckCarriers(const KernelContext& context, const std::vector<TableHandle>& tables,
                     int carriers);

// The splits, weights and combiner of a feature: its bags, but for `inverse`. Holds its tensors.
struct Bags {
  Tensor splits, weights;
  BagSpan span;

  // Weights are float[n_items], or float[0] for all 1.
  static Result<Bags> Read(const KernelContext& context, const Features& features, int feature,
                           int splits, int weights, size_t n_items);
};

// Calls read(f) for every feature when the rows of its table are found, all as of one committed
// state; again when the writer came between. Small tables are read side by side. All tables are of
// one group.
Status ReadRows(const Features& features, const std::vector<TableHandle>& tables,
                std::vector<RowGather>& gathers, Executor& executor,
                const std::function<void(int feature)>& read);

}  // namespace tsps

#endif  // TFSPS_KERNELS_FEATURES_H_
