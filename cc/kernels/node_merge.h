// The attributes and inputs that the ops that merge gradients on a node share.
#ifndef TFSPS_KERNELS_NODE_MERGE_H_
#define TFSPS_KERNELS_NODE_MERGE_H_

#include <memory>
#include <string>
#include <vector>

#include "core/exchange/node_exchange.h"
#include "kernels/gradients.h"
#include "kernels/group_registry.h"

namespace tsps {

struct MergeAttributes {
  int tables = 0;
  std::string operation;
  Reduction reduction = Reduction::kSum;

  Status Init(const Attributes& attributes);
};

// The first inputs of such an op: keys T, grads T, counts T, world_size, path, step, timeout_s.
struct MergeInputs {
  static int Count(int tables) { return 3 * tables + 4; }

  MergeCall call;
  GradientInputs gradients;  // owns the buffers that `tables` points to
  std::vector<Contribution> tables;
  std::shared_ptr<OpenGroup> owner;

  Status Read(const KernelContext& context, const MergeAttributes& attributes);
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_NODE_MERGE_H_
