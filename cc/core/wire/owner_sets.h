// OwnerSets: the gradients of several tables, sorted by the node that owns their keys
// (key_owner.h).
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
  // Sorts `sets`, one per table, which must have no places. Their rows must outlive the object.
  OwnerSets(const std::vector<WireSet>& sets, uint32_t nodes, Executor& executor);
  OwnerSets(const OwnerSets&) = delete;  // sets point into the object
  OwnerSets& operator=(const OwnerSets&) = delete;

  // Returns the sets of one owner, one per table.
  std::vector<WireSet> Of(uint32_t owner) const;

 private:
  struct Table {
    std::vector<size_t> starts;  // [owner]: the first key; and the end of the last owner's keys
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
