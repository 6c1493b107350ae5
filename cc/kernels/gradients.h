// Sparse gradients of several tables as ops pass them: lists keys T, grads T and, mostly, counts T.
#ifndef TFSPS_KERNELS_GRADIENTS_H_
#define TFSPS_KERNELS_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/executor.h"
#include "core/exchange/node_exchange.h"
#include "core/gradients/merge.h"
#include "core/wire/wire.h"
#include "kernels/tensors.h"

namespace tsps {

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

// The same outputs, of what an exchange has reduced. Frees the copies in `tables` as it goes.
Status WriteReducedOutputs(const KernelContext& context, std::vector<ReducedGradients>* tables,
                           Executor& executor);

// Packs a set per table into output `index`, padded.
Status PackIntoOutput(const KernelContext& context, int index, const std::vector<WireSet>& sets,
                      WireType type, Executor& executor);
// Packs sets for each receiver into output `index`, padded, one buffer after another, and writes
// the buffers' lengths, int32[receivers], to the output behind it. `sets_of` says what is whose.
Status PackForEach(const KernelContext& context, int index, uint32_t receivers,
                   const std::function<std::vector<WireSet>(uint32_t receiver)>& sets_of,
                   WireType type, Executor& executor);
// The outputs of PackForEach on a rank that has nothing to send.
Status PackNothing(const KernelContext& context, int index, uint32_t receivers);

}  // namespace tsps

#endif  // TFSPS_KERNELS_GRADIENTS_H_
