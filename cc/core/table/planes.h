// Planes: what a table keeps for every row, each plane in a file of its own, all of them addressed
// by the same row number.
#ifndef TFSPS_CORE_TABLE_PLANES_H_
#define TFSPS_CORE_TABLE_PLANES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"
#include "core/table/layout.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

struct Plane {
  std::string name;  // [a-z0-9_]{1,31}
  PlaneRole role = PlaneRole::kMetadata;
  PlaneType type = PlaneType::kUint32;
  size_t row_bytes = 0;
  uint32_t generation = 0;  // of the list for which it was made
  uint64_t initial = 0;     // bits of an element
  MappedFile* file = nullptr;

  char* row(uint32_t number) const { return file->data() + size_t{number} * row_bytes; }
  // Writes what the rows [row, row + n) of a new table, or of a new optimizer, have. Not of the
  // embedding and the key, which follow from the row's key.
  void Initialize(uint32_t row, size_t n) const { Fill(this->row(row), n); }
  void Fill(char* rows, size_t n) const;
};

size_t ElementBytes(PlaneType type);
// "float32" | "bfloat16" | "float16" | "uint32" | "int64"; for messages, too.
const char* PlaneTypeName(PlaneType type);
Result<PlaneType> PlaneTypeFromName(const std::string& name);

// Of one optimizer binding. The embedding is the first, the optimizer's slots come next.
struct PlaneList {
  uint32_t generation = 0;
  OptimizerConfig optimizer;
  std::vector<Plane> planes;

  size_t slots() const { return static_cast<size_t>(SlotCount(optimizer.kind)); }
  const Plane& embedding() const { return planes[0]; }
  const Plane& slot(size_t k) const { return planes[1 + k]; }
  // Those that a step or an assign changes of a row that is there: embedding and slots.
  size_t trained() const { return 1 + slots(); }
  const Plane& key() const { return planes[trained()]; }
  const Plane& changed() const { return planes[trained() + 1]; }
  size_t first_metadata() const { return trained() + 2; }
  // The planes of keys and of change generations, by row number.
  int64_t* keys() const { return reinterpret_cast<int64_t*>(key().file->data()); }
  uint32_t* changed_generations() const {
    return reinterpret_cast<uint32_t*>(changed().file->data());
  }
};

// Bytes of a row in the first n planes.
size_t RowBytes(const PlaneList& list, size_t n);
// Bytes of a row in some planes: bits of positions in the list.
size_t RowBytesOf(const PlaneList& list, uint64_t planes);

// The planes of a table of this configuration that is bound to `optimizer`: the slots are those of
// `generation`, the others of `made`. They have no files yet.
PlaneList PlanesOf(const TableConfig& config, const OptimizerConfig& optimizer, uint32_t generation,
                   uint32_t made);

// The metadata planes of a list, as a table's configuration declares them.
std::vector<MetadataPlane> MetadataOf(const PlaneList& list);

// InvalidArgument for metadata planes that cannot be.
Status ValidateMetadata(const TableConfig& config);

// As a file, and back. DataLoss, naming the path, for what is no list of planes, or one that this
// build does not know.
PlaneListFile PlaneListToFile(const PlaneList& list);
Result<PlaneList> PlaneListFromFile(const PlaneListFile& file, const TableConfig& config,
                                    uint32_t generation, const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_PLANES_H_
