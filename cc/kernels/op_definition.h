// The definition of an op for TensorFlow (registration.cc).
#ifndef TFSPS_KERNELS_OP_DEFINITION_H_
#define TFSPS_KERNELS_OP_DEFINITION_H_

#include <vector>

#include "kernels/shapes.h"
#include "kernels/tensors.h"

namespace tsps {

struct OpDefinition {
  const char* name;
  // Whether the op reads or writes a table. TensorFlow neither folds, merges, prunes nor reorders
  // stateful ops.
  bool stateful;
  ShapeFunction shapes;
  std::vector<const char*> attributes;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
};

// Returns the ops of pulls and of looking ahead (pull_ops.cc).
std::vector<OpDefinition> PullOps();
// Returns the ops of tables with rows on a device (device_cache_ops.cc).
std::vector<OpDefinition> DeviceCacheOps();

}  // namespace tsps

#endif  // TFSPS_KERNELS_OP_DEFINITION_H_
