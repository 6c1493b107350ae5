#include "core/table/table_config.h"

namespace tsps {

Status CheckKeys(const TableConfig& config, const int64_t* keys, size_t n) {
  if (config.key_limit <= 0) return Status();
  const auto limit = static_cast<uint64_t>(config.key_limit);
  uint64_t bad = 0;  // without a branch per key, so that it vectorises
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
