// TspsSegmentSum, the gradient of TspsLookup, and TspsMerge, which makes one gradient of many
// ranks'.
#include <string>
#include <utility>
#include <vector>

#include "core/merge.h"
#include "core/segment_sum.h"
#include "kernels/features.h"
#include "kernels/kernel.h"
#include "kernels/process.h"

namespace tsps {
namespace {

class SegmentSumKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, false); }

  // Inputs: grads N, inverses N, keys T. Outputs: sums T.
  Status Compute(const KernelContext& context) {
    const int n = features_.n;
    std::vector<Tensor> grads, inverses;
    for (int f = 0; f < n; ++f) {
      TSPS_ASSIGN_OR_RETURN(Tensor grad, context.Input(f));
      TSPS_ASSIGN_OR_RETURN(Tensor inverse, context.Input(n + f));
      std::vector<int64_t> rows = grad.shape();
      if (!rows.empty()) rows.pop_back();
      if (grad.rank() == 0 || rows != inverse.shape()) {
        return Error(Code::kInvalidArgument, "grads of feature ", f,
                     " must have the shape of its ids and the row width. Received: grads of shape ",
                     ShapeString(grad.shape()), ", inverses of shape ",
                     ShapeString(inverse.shape()));
      }
      grads.push_back(std::move(grad));
      inverses.push_back(std::move(inverse));
    }
    const size_t tables = static_cast<size_t>(features_.tables);
    std::vector<std::vector<GradientSpan>> spans(tables);
    std::vector<size_t> sizes(tables);
    for (size_t f = 0; f < grads.size(); ++f) {
      const auto t = static_cast<size_t>(features_.table_of[f]);
      spans[t].push_back({grads[f].data<float>(), inverses[f].data<int32_t>(), inverses[f].size()});
      sizes[t] += inverses[f].size();
    }
    std::vector<Tensor> keys, sums;
    for (int t = 0; t < features_.tables; ++t) {
      TSPS_ASSIGN_OR_RETURN(const int64_t dim, features_.CommonWidth(t, grads));
      TSPS_ASSIGN_OR_RETURN(Tensor own, context.Keys(2 * n + t));
      TSPS_ASSIGN_OR_RETURN(Tensor sum,
                            context.Output<float>(t, {static_cast<int64_t>(own.size()), dim}));
      keys.push_back(std::move(own));
      sums.push_back(std::move(sum));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<Status> statuses(tables);
    ForEachItem(sizes, *executor, [&](size_t t) {
      statuses[t] = SegmentSum(spans[t], keys[t].size(), static_cast<size_t>(sums[t].dim(1)),
                               sums[t].data<float>(), *executor);
    });
    return FirstError(statuses);
  }

 private:
  Features features_;
};

class MergeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(const std::string reduction, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction_, ReductionFromName(reduction));
    return Status();
  }

  // Inputs: keys T, grads T, counts T, world_size. Outputs: keys T, grads T, counts T.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const int32_t world_size,
                          context.Scalar<int32_t>(3 * tables_, "world_size"));
    if (world_size < 1) {
      return Error(Code::kInvalidArgument, "world_size must be >= 1. Received: ", world_size);
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    for (int t = 0; t < tables_; ++t) {
      TSPS_RETURN_IF_ERROR(MergeOne(context, t, world_size, *executor));
    }
    return Status();
  }

 private:
  Status MergeOne(const KernelContext& context, int t, int32_t world_size,
                  Executor& executor) const {
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(t));
    TSPS_ASSIGN_OR_RETURN(const Tensor grads, context.Input(tables_ + t, 2, "grads"));
    TSPS_ASSIGN_OR_RETURN(const Tensor counts, context.Input(2 * tables_ + t, 1, "counts"));
    const size_t n = keys.size();
    const size_t dim = static_cast<size_t>(grads.dim(1));
    if (grads.dim(0) != keys.dim(0) || counts.dim(0) != keys.dim(0)) {
      return Error(Code::kInvalidArgument, "table ", t, " has ", n,
                   " keys; expected as many grads and counts. Received: grads of shape ",
                   ShapeString(grads.shape()), ", counts of shape ", ShapeString(counts.shape()));
    }
    MergedGradients merged;
    const std::vector<GradientSet> sets = {
        {keys.data<int64_t>(), counts.data<int32_t>(), grads.data<float>(), n}};
    TSPS_RETURN_IF_ERROR(MergeKeys(sets, reduction_, &merged, executor));
    TSPS_ASSIGN_OR_RETURN(
        const Tensor reduced,
        context.Output<float>(
            tables_ + t, {static_cast<int64_t>(merged.keys.size()), static_cast<int64_t>(dim)}));
    TSPS_RETURN_IF_ERROR(
        MergeRows(sets, dim, merged, reduction_, world_size, reduced.data<float>(), executor));
    TSPS_RETURN_IF_ERROR(context.OutputVector(t, merged.keys));
    return context.OutputVector(2 * tables_ + t, merged.counts);
  }

  int tables_ = 0;
  Reduction reduction_ = Reduction::kSum;
};

}  // namespace

void RegisterReduceKernels() {
  RegisterKernel<SegmentSumKernel>("TspsSegmentSum");
  RegisterKernel<MergeKernel>("TspsMerge");
}

}  // namespace tsps
