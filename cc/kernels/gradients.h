// Sparse gradients of several tables as inputs and outputs of ops: the lists keys T, grads T and,
// in most ops, counts T.
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

// The gradients in inputs 0 on: keys T, grads T and, `with_counts`, counts T: int32[n]
// (core/gradients/key_count.h), or int32[0] if each key is of one rank. Owns the tensors that the
// sets point to.
struct GradientInputs {
  std::vector<TableSets> tables;  // each has one set
  std::vector<Tensor> held;

  Status Read(const KernelContext& context, int n_tables, bool with_counts);
};

// Merges each table's sets, in their order, into outputs keys T, grads T, counts T. Merges small
// tables in parallel.
Status MergeIntoOutputs(const KernelContext& context, const std::vector<TableSets>& tables,
                        Reduction reduction, int32_t world_size, Executor& executor);

// Writes gradients that an exchange has reduced to the same outputs. Frees the copies in `tables`
// table by table.
Status WriteReducedOutputs(const KernelContext& context, std::vector<ReducedGradients>* tables,
                           Executor& executor);

// Packs a set per table into output `index`, padded.
Status PackIntoOutput(const KernelContext& context, int index, const std::vector<WireSet>& sets,
                      WireType type, Executor& executor);
// Packs sets for each receiver into output `index`, padded, one buffer after another. Writes the
// lengths of the buffers, int32[receivers], to output index + 1. `sets_of` returns the sets of a
// receiver.
Status PackForEach(const KernelContext& context, int index, uint32_t receivers,
                   const std::function<std::vector<WireSet>(uint32_t receiver)>& sets_of,
                   WireType type, Executor& executor);
// Writes the outputs of PackForEach on a rank that has nothing to send.
Status PackNothing(const KernelContext& context, int index, uint32_t receivers);

}  // namespace tsps

#endif  // TFSPS_KERNELS_GRADIENTS_H_
