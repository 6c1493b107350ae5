// What the ops that merge on a node have in common.
#ifndef TFSPS_KERNELS_NODE_MERGE_H_
#define TFSPS_KERNELS_NODE_MERGE_H_

#include <memory>
#include <string>
#include <vector>

#include "core/node_exchange.h"
#include "kernels/gradients.h"
#include "kernels/group_registry.h"

namespace tsps {

struct MergeAttributes {
  int tables = 0;
  std::string operation;
  Reduction reduction = Reduction::kSum;

  Status Init(const Attributes& attributes);
};

// What such an op begins with: keys T, grads T, world_size, path, step, timeout_s.
struct MergeInputs {
  static int Count(int tables) { return 2 * tables + 4; }

  MergeCall call;
  GradientInputs gradients;  // hold the buffers that `tables` points to
  std::vector<Contribution> tables;
  std::shared_ptr<OpenGroup> owner;

  Status Read(const KernelContext& context, const MergeAttributes& attributes);
};

// Inputs from `first` on: paths T, uuids T, hyper T. What the leader makes a step of.
class StepUpdates {
 public:
  Status Read(const KernelContext& context, int first, int n_tables, const OpenGroup& owner,
              TableCache* cache);
  // InvalidArgument unless `dim` is the table's.
  Status CheckDim(size_t table, size_t dim) const;
  // Applies and publishes the step.
  Status Apply(OpenGroup& owner, int64_t step, const std::vector<ReducedGradients>& gradients);

 private:
  TableCache::Tables tables_;
  std::vector<Tensor> hypers_;  // hold the buffers that `updates_` points to
  std::vector<TableUpdate> updates_;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_NODE_MERGE_H_
