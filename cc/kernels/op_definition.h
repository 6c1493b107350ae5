// How an op is defined for TensorFlow (registration.cc).
#ifndef TFSPS_KERNELS_OP_DEFINITION_H_
#define TFSPS_KERNELS_OP_DEFINITION_H_

#include <vector>

#include "kernels/shapes.h"
#include "kernels/tensors.h"

namespace tsps {

struct OpDefinition {
  const char* name;
  // Reads or writes a table: neither folded, merged, pruned nor reordered.
  bool stateful;
  ShapeFunction shapes;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
};

// Of pulls and of looking ahead (pull_ops.cc).
std::vector<OpDefinition> PullOps();
// Of tables with rows on a device (device_cache_ops.cc).
std::vector<OpDefinition> DeviceCacheOps();

}  // namespace tsps

#endif  // TFSPS_KERNELS_OP_DEFINITION_H_
