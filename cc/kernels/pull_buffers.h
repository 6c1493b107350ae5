// What the ops of a pull send each other, and their attributes (pull.cc).
//
// Keys and rows travel in the wire format: keys with rows of no floats, and behind the tables a set
// of one key if a rank has set its flag; rows with their positions among those keys in place of
// keys, whose code takes next to nothing. A pull of the next batch has as many sets again: keys of
// later batches, for whose rows nobody waits. The flag of a look-up: a rank knows of coming
// batches. Of a pull of the next batch: a rank does not know all that was looked up, so that no row
// is certain to stay.
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
  bool ahead = false;  // of the next batch

  // Sets of keys that are sent: of each table one, and where there is room one of later batches.
  size_t sets() const {
    const auto n = static_cast<size_t>(tables);
    return ahead && 2 * n <= static_cast<size_t>(kMaxTables) ? 2 * n : n;
  }
  Status Init(const Attributes& attributes);
};

// Reads rows of keys: rows[table], float[keys, dim].
Status ReadRowsOf(const std::vector<TableHandle>& tables,
                  const std::vector<std::vector<int64_t>>& keys,
                  std::vector<std::vector<float>>* rows, Executor& executor);

// The set behind those of the tables.
WireSet FlagSet(bool flag);

// What each node has sent, checked against what is expected of it.
Result<std::vector<WireReader>> OpenBuffers(const Tensor& buffers, uint32_t nodes, size_t tables);

}  // namespace tsps

#endif  // TFSPS_KERNELS_PULL_BUFFERS_H_
