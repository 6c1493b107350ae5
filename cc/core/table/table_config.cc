#include "core/table/table_config.h"

#include "core/table/planes.h"

namespace tsps {

void InitialRow(const TableConfig& config, int64_t key, void* row) {
  const auto dim = static_cast<size_t>(config.dim);
  if (!IsNarrow(config.row_type)) {
    return InitialRow(config.initializer, key, dim, static_cast<float*>(row));
  }
  std::vector<float> values(dim);
  InitialRow(config.initializer, key, dim, values.data());
  NarrowRow(config.row_type, values.data(), dim, row);
}

Result<StoredRows> StoredRows::Of(const TableConfig& config, const int64_t* keys, const float* rows,
                                  size_t n) {
  StoredRows stored;
  stored.rows_ = rows;
  if (!IsNarrow(config.row_type)) return stored;
  const auto dim = static_cast<size_t>(config.dim);
  const int64_t beyond = FirstBeyondRange(config.row_type, rows, n * dim);
  if (beyond >= 0) {
    return Error(Code::kInvalidArgument, "table ", config.name, ": ", rows[beyond],
                 ", in the row of key ", keys[static_cast<size_t>(beyond) / dim],
                 ", is beyond the range of ", PlaneTypeName(config.row_type));
  }
  stored.narrow_.resize(n * dim);
  NarrowRow(config.row_type, rows, n * dim, stored.narrow_.data());
  return stored;
}

Status ValidateShard(const Shard& shard) {
  if (shard.nodes == 0 ? shard.node == 0 : shard.nodes > 1 && shard.node < shard.nodes) {
    return Status();
  }
  return Error(Code::kInvalidArgument,
               "a shard needs at least 2 nodes, and a node below their number. Received: node ",
               shard.node, " of ", shard.nodes);
}

uint64_t MostRows(const TableConfig& config) {
  uint64_t rows = 0;
  for (const int64_t limit : {config.max_rows, config.key_limit}) {
    const auto most = static_cast<uint64_t>(limit);
    if (limit > 0 && (rows == 0 || most < rows)) rows = most;
  }
  return rows;
}

Status CheckKeys(const TableConfig& config, const int64_t* keys, size_t n) {
  if (config.key_limit <= 0) return Status();
  const auto limit = static_cast<uint64_t>(config.key_limit);
  uint64_t bad = 0;  // no branch per key, so that the loop is vectorized
  for (size_t i = 0; i < n; ++i)
    bad |= static_cast<uint64_t>(static_cast<uint64_t>(keys[i]) >= limit);
  if (bad == 0) return Status();
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<uint64_t>(keys[i]) >= limit) {
      return Error(Code::kOutOfRange, "table ", config.name, ": key ", keys[i], " at position ", i,
                   " is not in [0, ", config.key_limit, ")");
    }
  }
  return Status();
}

}  // namespace tsps
