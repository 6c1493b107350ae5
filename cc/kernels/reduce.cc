// TspsSegmentSum, the gradient of TspsLookup; TspsMerge, which merges the gradients of several
// ranks into one; and TspsKeepIf, which drops the gradients of a rank with the weight 0.
#include <string>
#include <utility>
#include <vector>

#include "core/gradients/bags.h"
#include "kernels/features.h"
#include "kernels/gradients.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

class SegmentSumKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, false); }

  // Inputs: grads N, inverses N, keys T. Outputs: sums T.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("segment sum");
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
      TSPS_ASSIGN_OR_RETURN(Tensor table_keys, context.Keys(2 * n + t));
      TSPS_ASSIGN_OR_RETURN(
          Tensor sum, context.Output<float>(t, {static_cast<int64_t>(table_keys.size()), dim}));
      keys.push_back(std::move(table_keys));
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
    GradientInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, tables_, /*with_counts=*/true));
    return MergeIntoOutputs(context, inputs.tables, reduction_, world_size, *SharedExecutor());
  }

 private:
  int tables_ = 0;
  Reduction reduction_ = Reduction::kSum;
};

class KeepIfKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    return Status();
  }

  // Inputs: weight, keys T, grads T. Outputs: keys T, grads T.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const float weight, context.Scalar<float>(0, "weight"));
    for (int i = 0; i < 2 * tables_; ++i) {
      if (weight > 0) {
        TSPS_RETURN_IF_ERROR(context.Forward(1 + i, i));
      } else if (i < tables_) {
        TSPS_RETURN_IF_ERROR(context.Output<int64_t>(i, {0}).status());
      } else {
        TSPS_ASSIGN_OR_RETURN(const Tensor grads, context.Input(1 + i, 2, "grads"));
        TSPS_RETURN_IF_ERROR(context.Output<float>(i, {0, grads.dim(1)}).status());
      }
    }
    return Status();
  }

 private:
  int tables_ = 0;
};

}  // namespace

void RegisterReduceKernels() {
  RegisterKernel<SegmentSumKernel>("TspsSegmentSum");
  RegisterKernel<MergeKernel>("TspsMerge");
  RegisterKernel<KeepIfKernel>("TspsKeepIf");
}

}  // namespace tsps
