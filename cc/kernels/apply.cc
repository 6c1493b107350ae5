// TspsApply: one optimizer step over tables of one group, published as one.
#include <vector>

#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"

namespace tsps {
namespace {

class ApplyKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    return Status();
  }

  // Inputs: step, paths T, uuids T, keys T, grads T, hyper T. Outputs: step.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(0, "step"));
    if (step < 1) return Error(Code::kInvalidArgument, "step must be >= 1. Received: ", step);
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 1, 1 + tables_, tables_));
    std::vector<Tensor> inputs;  // hold the buffers that `updates` points to
    std::vector<TableUpdate> updates;
    for (int t = 0; t < tables_; ++t) {
      const TableHandle& table = (*tables)[static_cast<size_t>(t)];
      TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(1 + 2 * tables_ + t));
      TSPS_ASSIGN_OR_RETURN(Tensor grads, context.Input(1 + 3 * tables_ + t, 2, "grads"));
      TSPS_ASSIGN_OR_RETURN(Tensor hyper, context.Input(1 + 4 * tables_ + t, 1, "hyper"));
      if (grads.dim(0) != keys.dim(0) || grads.dim(1) != table.config().dim) {
        return Error(Code::kInvalidArgument, "grads of table ", table.path(), " must have shape ",
                     ShapeString({keys.dim(0), table.config().dim}),
                     ". Received: ", ShapeString(grads.shape()));
      }
      TableUpdate update;
      update.table = table.table;
      update.keys = keys.data<int64_t>();
      update.gradients = grads.data<float>();
      update.n = keys.size();
      update.hyper = hyper.data<float>();
      update.n_hyper = hyper.size();
      updates.push_back(update);
      inputs.push_back(std::move(keys));
      inputs.push_back(std::move(grads));
      inputs.push_back(std::move(hyper));
    }
    const std::shared_ptr<Executor> executor = WriterExecutor();
    TSPS_RETURN_IF_ERROR(tables->front().owner->Write([&](GroupWriter& writer) {
      return writer.ApplyStep(static_cast<uint64_t>(step), updates, *executor);
    }));
    return context.OutputScalar(0, step);
  }

 private:
  int tables_ = 0;
  TableCache cache_;
};

}  // namespace

void RegisterApplyKernels() { RegisterKernel<ApplyKernel>("TspsApply"); }

}  // namespace tsps
