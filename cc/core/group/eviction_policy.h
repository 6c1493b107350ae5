// EvictionPolicy: which rows the steps of a table evict.
//
// A step evicts rows in its own commit. Which ones follows from its number and from the rows: not
// from row numbers, the order of insertion, or anything that the writer remembers. So all nodes
// evict the same rows, and so does a job that continues from a checkpoint.
//
// - Step t looks at the rows whose hashes follow a position that t gives. Hashes use the seed of
//   the table's index, which all nodes share and checkpoints have.
// - It looks at kRowsPerStep rows, or, if that is more, at kRowsPerExcess times the rows that
// exceed
//   max_rows. It evicts those that no step has trained for `unused_steps` steps, and then as many
//   of the others as exceed max_rows: the least used ones that it looks at.
// - It never evicts a row that it reads or writes, nor a key of `keep`.
#ifndef TFSPS_CORE_GROUP_EVICTION_POLICY_H_
#define TFSPS_CORE_GROUP_EVICTION_POLICY_H_

#include <cstdint>
#include <string>
#include <unordered_set>

#include "core/base/status.h"
#include "core/table/row_use.h"

namespace tsps {

struct EvictionPolicy {
  // Which rows are used least: those that were trained last the longest ago, or those that fewer
  // steps have trained, by counts that decay.
  enum class Order { kLeastRecent, kLeastFrequent };
  // Returns the order of a name: "lru" or "lfu". InvalidArgument for other names.
  static Result<Order> OrderFromName(const std::string& name) {
    if (name == "lru") return Order::kLeastRecent;
    if (name == "lfu") return Order::kLeastFrequent;
    return Error(Code::kInvalidArgument, "the order of eviction is lru or lfu. Received: ", name);
  }

  static constexpr uint64_t kRowsPerStep = 1024;
  static constexpr uint64_t kRowsPerExcess = 4;

  uint64_t unused_steps = 0;  // 0: any number
  uint64_t max_rows = 0;      // of this group's table; 0: any number
  Order order = Order::kLeastRecent;
  uint32_t half_life = kDefaultHalfLife;  // of the counts, in steps
  std::unordered_set<int64_t> keep;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_EVICTION_POLICY_H_
