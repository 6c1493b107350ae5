// How the memory of a tiered table is divided.
#ifndef TFSPS_CORE_TABLE_MEMORY_PLAN_H_
#define TFSPS_CORE_TABLE_MEMORY_PLAN_H_

#include <cstdint>

#include "core/table/planes.h"
#include "core/table/table_config.h"

namespace tsps {

// The parts of a table's memory.
struct MemoryPlan {
  uint64_t rows = 0;         // rows in memory
  uint64_t rows_in_all = 0;  // all rows whose places on disk fit into memory
  uint64_t cache_bytes = 0;  // for records that were read or are staged
};
// What a row takes: its bytes in all planes, and whether a row on disk keeps its use in memory.
struct RowCost {
  RowCost(uint64_t row_bytes, bool with_use = false) : bytes(row_bytes), has_use(with_use) {}
  explicit RowCost(const PlaneList& list);

  uint64_t bytes;
  bool has_use;
};
// Returns how the memory of a storage is divided. `most_rows` is the most that the table can have;
// 0: any number, and then a quarter of the memory or, with uses, 47 % is reserved for the places
// of rows on disk.
MemoryPlan PlanMemory(const TieredStorage& storage, const RowCost& row, uint64_t most_rows);
// Returns the least memory that can hold `rows` rows.
uint64_t MemoryFor(uint64_t rows, const RowCost& row, uint64_t most_rows);
// Returns the bytes of a file of records: a sixteenth of the memory, from 1 to 64 MiB, unless the
// storage says another number.
uint64_t FileBytes(const TieredStorage& storage);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_MEMORY_PLAN_H_
