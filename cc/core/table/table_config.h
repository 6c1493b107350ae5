// What never changes of a table.
#ifndef TFSPS_CORE_TABLE_TABLE_CONFIG_H_
#define TFSPS_CORE_TABLE_TABLE_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/table/initializer.h"
#include "core/table/layout.h"
#include "core/table/row_type.h"

namespace tsps {

// A plane of the table's own, beside those that every table has: counts, or other small things that
// are kept for every row.
struct MetadataPlane {
  std::string name;  // [a-z0-9_]{1,31}
  PlaneType type = PlaneType::kUint32;
  uint32_t elements = 1;  // per row
  uint64_t initial = 0;   // bits of every element of a new row
};

// Which part of a table this is, of one whose rows are spread over nodes: the keys that OwnerOf()
// (base/key_owner.h) gives to this node.
struct Shard {
  uint32_t node = 0;   // below `nodes`
  uint32_t nodes = 0;  // 2 or more; 0: the whole table

  bool whole() const { return nodes == 0; }
};

// That a table has rows on a disk, too.
struct TieredStorage {
  std::string folder;   // absolute, the table's own; "": the table has all rows in memory
  uint64_t memory = 0;  // bytes that it may take, on this node

  bool tiered() const { return !folder.empty(); }
};

struct TableConfig {
  std::string name;       // folder name in the group: [A-Za-z0-9._-]{1,128}, not starting with '.'
  std::string uuid;       // 32 hexadecimal digits, drawn by the caller
  int64_t dim = 0;        // elements per row, 1 .. 65536
  int64_t key_limit = 0;  // bounded table: keys are 0 .. key_limit - 1; 0: any int64 is a key
  int64_t max_rows = 0;   // refuse to grow beyond; 0: no limit but room
  InitializerConfig initializer;
  std::vector<MetadataPlane> metadata;
  PlaneType row_type = PlaneType::kFloat32;   // IsRowType()
  Rounding rounding = Rounding::kStochastic;  // of rows of 16 bits
  TieredStorage storage;
  Shard shard;
};

// InvalidArgument for one that cannot be.
Status ValidateShard(const Shard& shard);

// How many rows it can have; 0: any number.
uint64_t MostRows(const TableConfig& config);

// What a new row of a key is, as it is stored: values of the initializer, rounded to the nearest.
void InitialRow(const TableConfig& config, int64_t key, void* row);

// Rows that are given as floats, as a table stores them.
class StoredRows {
 public:
  // rows: float[n, dim] of n keys; must outlive this. Rounded to the nearest. InvalidArgument,
  // naming the key, for a finite value that is beyond the type's range.
  static Result<StoredRows> Of(const TableConfig& config, const int64_t* keys, const float* rows,
                               size_t n);
  const void* data() const {
    return narrow_.empty() ? static_cast<const void*>(rows_) : narrow_.data();
  }

 private:
  const float* rows_ = nullptr;
  std::vector<uint16_t> narrow_;
};

// OutOfRange naming the first key outside a bounded table, its position and the limit.
Status CheckKeys(const TableConfig& config, const int64_t* keys, size_t n);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_CONFIG_H_
