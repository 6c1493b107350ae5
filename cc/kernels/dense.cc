// TspsWeightedConcat and TspsMeanSplit: they pack dense gradients into one buffer, of which the
// ranks compute the weighted mean, and unpack it. Each is one pass over the gradients, instead of
// one or more ops per gradient.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/gradients/scaled_copy.h"
#include "kernels/kernel.h"
#include "kernels/process.h"

namespace tsps {
namespace {

class WeightedConcatKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(n_, attributes.Int("N"));
    return Status();
  }

  // Inputs: tensors N, weight, tail. Output: buffer.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const float weight, context.Scalar<float>(n_, "weight"));
    TSPS_ASSIGN_OR_RETURN(const Tensor tail, context.Input(n_ + 1, 1, "tail"));
    std::vector<Tensor> tensors;
    size_t total = tail.size();
    for (int i = 0; i < n_; ++i) {
      TSPS_ASSIGN_OR_RETURN(Tensor tensor, context.Input(i));
      total += tensor.size();
      tensors.push_back(std::move(tensor));
    }
    TSPS_ASSIGN_OR_RETURN(const Tensor buffer,
                          context.Output<float>(0, {static_cast<int64_t>(total)}));
    float* to = buffer.data<float>();
    std::vector<FloatCopy> copies;
    for (const Tensor& tensor : tensors) {
      copies.push_back({tensor.data<const float>(), to, tensor.size()});
      to += tensor.size();
    }
    CopyMultiplied(copies, weight, *SharedExecutor());
    std::copy_n(tail.data<const float>(), tail.size(), to);
    return Status();
  }

 private:
  int n_ = 0;
};

class MeanSplitKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(n_, attributes.Int("N"));
    return Status();
  }

  // Inputs: like N, sums, weights. Outputs: means N.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor sums, context.Input(n_, 1, "sums"));
    TSPS_ASSIGN_OR_RETURN(const float weights, context.Scalar<float>(n_ + 1, "weights"));
    std::vector<std::vector<int64_t>> shapes;
    size_t total = 0;
    for (int i = 0; i < n_; ++i) {
      TSPS_ASSIGN_OR_RETURN(const Tensor like, context.Input(i));
      total += like.size();
      shapes.push_back(like.shape());
    }
    if (total > sums.size()) {
      return Error(Code::kInvalidArgument, "sums must have at least the ", total,
                   " elements of the tensors in like. Received: ", sums.size());
    }
    const float* from = sums.data<const float>();
    std::vector<Tensor> means;
    std::vector<FloatCopy> copies;
    for (int i = 0; i < n_; ++i) {
      TSPS_ASSIGN_OR_RETURN(Tensor mean,
                            context.InputAsOutput(i, i, shapes[static_cast<size_t>(i)]));
      copies.push_back({from, mean.data<float>(), mean.size()});
      from += mean.size();
      means.push_back(std::move(mean));
    }
    CopyDivided(copies, weights, *SharedExecutor());
    return Status();
  }

 private:
  int n_ = 0;
};

}  // namespace

void RegisterDenseKernels() {
  RegisterKernel<WeightedConcatKernel>("TspsWeightedConcat");
  RegisterKernel<MeanSplitKernel>("TspsMeanSplit");
}

}  // namespace tsps
