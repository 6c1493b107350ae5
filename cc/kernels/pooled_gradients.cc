#include "kernels/pooled_gradients.h"

#include <utility>

namespace tsps {

Status PooledGradients::Init(const KernelContext& context, const Features& features) {
  const int n = features.n;
  for (int f = 0; f < n; ++f) {
    TSPS_ASSIGN_OR_RETURN(Tensor grad, context.Input(f, 2, "grads"));
    TSPS_ASSIGN_OR_RETURN(Tensor inverse, context.Input(3 * n + f, 1, "inverses"));
    TSPS_ASSIGN_OR_RETURN(Bags feature,
                          Bags::Read(context, features, f, n + f, 2 * n + f, inverse.size()));
    feature.span.inverse = inverse.data<int32_t>();
    if (grad.dim(0) != static_cast<int64_t>(feature.span.n_bags)) {
      return Error(Code::kInvalidArgument, "feature ", f, " has ", feature.span.n_bags,
                   " bags; expected a gradient for each. Received: grads of shape ",
                   ShapeString(grad.shape()));
    }
    grads.push_back(std::move(grad));
    inverses.push_back(std::move(inverse));
    bags.push_back(std::move(feature));
  }
  for (int t = 0; t < features.tables; ++t) {
    TSPS_ASSIGN_OR_RETURN(Tensor key, context.Keys(4 * n + t));
    keys.push_back(std::move(key));
  }
  return Status();
}

Status PooledGradients::Check(const Features& features, int feature, int64_t dim) const {
  const size_t f = static_cast<size_t>(feature);
  TSPS_RETURN_IF_ERROR(CheckInverse(inverses[f], features.In(keys, feature).size(), feature));
  if (grads[f].dim(1) != dim) {
    return Error(Code::kInvalidArgument, "grads of feature ", feature, " must have shape [bags,",
                 dim, "]. Received: ", ShapeString(grads[f].shape()));
  }
  return Status();
}

}  // namespace tsps
