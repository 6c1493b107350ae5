// OwnerSets: what a node has for several tables, by the node that owns the keys (key_owner.h).
#ifndef TFSPS_CORE_WIRE_OWNER_SETS_H_
#define TFSPS_CORE_WIRE_OWNER_SETS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/wire/wire.h"

namespace tsps {

class OwnerSets {
 public:
  // `sets`, one per table, have no places. What their rows point to must outlive this.
  OwnerSets(const std::vector<WireSet>& sets, uint32_t nodes, Executor& executor);
  OwnerSets(const OwnerSets&) = delete;  // sets point into this
  OwnerSets& operator=(const OwnerSets&) = delete;

  // Of one owner, one per table.
  std::vector<WireSet> Of(uint32_t owner) const;

 private:
  struct Table {
    std::vector<size_t> starts;  // [owner], and the end
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;   // empty: all 1
    std::vector<uint32_t> places;  // of the keys' rows
    const float* rows;
    size_t dim;
  };
  std::vector<Table> tables_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_OWNER_SETS_H_
