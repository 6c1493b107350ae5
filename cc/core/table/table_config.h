// The configuration of a table, which never changes.
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

// A plane of metadata, such as a count, that a table keeps for every row in addition to the planes
// that all tables have.
struct MetadataPlane {
  std::string name;  // [a-z0-9_]{1,31}
  PlaneType type = PlaneType::kUint32;
  uint32_t elements = 1;  // per row
  uint64_t initial = 0;   // bits of every element of a new row
};

// A part of a table whose rows are sharded over nodes: the keys that OwnerOf() (base/key_owner.h)
// assigns to one node.
struct Shard {
  uint32_t node = 0;   // below `nodes`
  uint32_t nodes = 0;  // 2 or more; 0: the whole table

  bool whole() const { return nodes == 0; }
};

// The storage of a table that also has rows on disk.
struct TieredStorage {
  std::string folder;       // absolute; no other table uses it; "": all rows are in memory
  uint64_t memory = 0;      // bytes of memory that the table may use on this node
  uint64_t file_bytes = 0;  // of a file of records; 0: chosen from `memory`
  uint64_t buffers = 0;     // the part of `memory` for buffers; 0: chosen from the bytes of a file

  bool tiered() const { return !folder.empty(); }
};

struct TableConfig {
  std::string name;       // folder name in the group: [A-Za-z0-9._-]{1,128}, not starting with '.'
  std::string uuid;       // 32 hexadecimal digits, drawn by the caller
  int64_t dim = 0;        // elements per row, 1 .. 65536
  int64_t key_limit = 0;  // bounded table: keys are 0 .. key_limit - 1; 0: any int64 is a key
  int64_t max_rows = 0;   // the most rows; 0: limited by space only
  InitializerConfig initializer;
  std::vector<MetadataPlane> metadata;
  PlaneType row_type = PlaneType::kFloat32;   // IsRowType()
  Rounding rounding = Rounding::kStochastic;  // of 16-bit rows
  TieredStorage storage;
  Shard shard;
};

// Returns InvalidArgument for an impossible shard.
Status ValidateShard(const Shard& shard);

// Returns the most rows that the table can have; 0: any number.
uint64_t MostRows(const TableConfig& config);

// Writes the initial row of a key in the table's row type: the initializer's values, rounded to the
// nearest.
void InitialRow(const TableConfig& config, int64_t key, void* row);

// Rows of floats, converted to the row type of a table.
class StoredRows {
 public:
  // Converts rows, float[n, dim], of n keys, and rounds them to the nearest. `rows` must outlive
  // the result. InvalidArgument, naming the key, for a finite value beyond the range of the type.
  static Result<StoredRows> Of(const TableConfig& config, const int64_t* keys, const float* rows,
                               size_t n);
  const void* data() const {
    return narrow_.empty() ? static_cast<const void*>(rows_) : narrow_.data();
  }

 private:
  const float* rows_ = nullptr;
  std::vector<uint16_t> narrow_;
};

// Returns OutOfRange for the first key outside a bounded table, naming it, its position and the
// limit.
Status CheckKeys(const TableConfig& config, const int64_t* keys, size_t n);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_CONFIG_H_
