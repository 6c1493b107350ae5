// Sparse gradients of several tables as ops pass them: lists keys T, grads T and, mostly, counts T.
#ifndef TFSPS_KERNELS_GRADIENTS_H_
#define TFSPS_KERNELS_GRADIENTS_H_

#include <cstddef>
#include <vector>

#include "core/executor.h"
#include "core/merge.h"
#include "kernels/tensors.h"

namespace tsps {

// One table's gradients: one set, or those of several senders.
struct TableSets {
  size_t dim = 0;
  std::vector<GradientSet> sets;
};

// Inputs 0 on. They hold the tensors that the sets point to.
struct GradientInputs {
  std::vector<TableSets> tables;  // of one set each
  std::vector<Tensor> held;

  Status Read(const KernelContext& context, int n_tables, bool with_counts);
};

// Merges each table's sets, in their order, into outputs keys T, grads T, counts T. Small tables
// are merged side by side.
Status MergeIntoOutputs(const KernelContext& context, const std::vector<TableSets>& tables,
                        Reduction reduction, int32_t world_size, Executor& executor);

}  // namespace tsps

#endif  // TFSPS_KERNELS_GRADIENTS_H_
