// The inputs that the gradients of pooled lookups share.
#ifndef TFSPS_KERNELS_POOLED_GRADIENTS_H_
#define TFSPS_KERNELS_POOLED_GRADIENTS_H_

#include <vector>

#include "kernels/features.h"
#include "kernels/tensors.h"

namespace tsps {

// The first inputs of each of these ops: grads N, splits N, weights N, inverses N, keys T.
struct PooledGradients {
  std::vector<Tensor> grads, inverses, keys;
  std::vector<Bags> bags;

  Status Init(const KernelContext& context, const Features& features);
  // The checks that a gradient of weights needs: refuses inverses that are not positions of keys,
  // and gradients of feature `feature` whose width is not `dim`.
  Status Check(const Features& features, int feature, int64_t dim) const;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_POOLED_GRADIENTS_H_
