// The buffers that the ops of a pull send each other, and the attributes of these ops (pull.cc).
//
// Keys and rows travel in the wire format:
// - Keys are sent with rows of no floats. After the sets of the tables, a last set has one key if a
//   rank has set its flag. A pull of the next batch may have another set per table between them:
//   keys of later batches, for whose rows no rank waits.
// - Rows are sent with their positions among those keys instead of keys, because the code of
//   positions takes nearly no bytes.
//
// The flag of a lookup means that a rank knows coming batches. The flag of a pull of the next batch
// means that a rank does not know all keys that were looked up, so any row may change.
#ifndef TFSPS_KERNELS_PULL_BUFFERS_H_
#define TFSPS_KERNELS_PULL_BUFFERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/limits.h"
#include "core/wire/wire.h"
#include "kernels/group_registry.h"
#include "kernels/tensors.h"

namespace tsps {

struct PullAttributes {
  int tables = 0;
  std::string operation;
  uint32_t nodes = 1, node = 0;
  WireType type = WireType::kFloat32;
  bool ahead = false;  // whether this is a pull of the next batch

  // Returns the number of sets of keys that are sent: one per table, and in a pull of the next
  // batch another one per table for later batches, if the wire format has space for them.
  size_t sets() const {
    const auto n = static_cast<size_t>(tables);
    return ahead && 2 * n <= static_cast<size_t>(kMaxTables) ? 2 * n : n;
  }
  Status Init(const Attributes& attributes);
};

// Reads the rows of keys into rows[table], float[keys, dim].
Status ReadRowsOf(const std::vector<TableHandle>& tables,
                  const std::vector<std::vector<int64_t>>& keys,
                  std::vector<std::vector<float>>* rows, Executor& executor);

// Returns the last set of a buffer, which carries the flag.
WireSet FlagSet(bool flag);

// Opens the buffers of all nodes. InvalidArgument: the number of nodes or tables is wrong.
Result<std::vector<WireReader>> OpenBuffers(const Tensor& buffers, uint32_t nodes, size_t tables);

}  // namespace tsps

#endif  // TFSPS_KERNELS_PULL_BUFFERS_H_
