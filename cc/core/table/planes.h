// Planes: the columns of a table. A plane keeps one value, or a vector, for every row, in a file of
// its own. All planes of a table are addressed by the same row number.
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
#include "core/table/row_use.h"
#include "core/table/table_config.h"

namespace tsps {

// One plane, whose file is mapped.
struct Plane {
  std::string name;  // [a-z0-9_]{1,31}
  PlaneRole role = PlaneRole::kMetadata;
  PlaneType type = PlaneType::kUint32;
  size_t row_bytes = 0;
  uint32_t generation = 0;  // of the list that it was created for
  uint64_t initial = 0;     // bits of an element of a new row
  MappedFile* file = nullptr;

  // Returns the address of a row; the file must reach that far.
  char* row(uint32_t number) const { return file->data() + size_t{number} * row_bytes; }
  // Writes the initial values of rows [row, row + n). Not for the embedding and the key, whose
  // values follow from the row's key.
  void Initialize(uint32_t row, size_t n) const { Fill(this->row(row), n); }
  // Writes the initial values of n rows to `rows`.
  void Fill(char* rows, size_t n) const;
};

// Returns the bytes of an element; 0 for an unknown type.
size_t ElementBytes(PlaneType type);
// Returns the name of a type: "float32", "bfloat16", "float16", "uint32" or "int64"; "unknown" for
// others.
const char* PlaneTypeName(PlaneType type);
// Returns the type of a name. InvalidArgument for other names.
Result<PlaneType> PlaneTypeFromName(const std::string& name);

// The planes of a table under one optimizer binding. The embedding is the first, and the
// optimizer's slots follow.
struct PlaneList {
  uint32_t generation = 0;
  OptimizerConfig optimizer;
  std::vector<Plane> planes;

  size_t slots() const { return static_cast<size_t>(SlotCount(optimizer.kind)); }
  const Plane& embedding() const { return planes[0]; }
  const Plane& slot(size_t k) const { return planes[1 + k]; }
  // Whether the table records the use of its rows, in the plane after the slots.
  bool records_use() const { return planes[1 + slots()].role == PlaneRole::kUse; }
  // The number of planes that steps change in existing rows: the embedding, the slots and the use.
  size_t trained() const { return 1 + slots() + (records_use() ? 1 : 0); }
  // The use of rows, by row number; null if the table does not record it.
  RowUse* uses() const {
    return records_use() ? reinterpret_cast<RowUse*>(planes[1 + slots()].file->data()) : nullptr;
  }
  const Plane& key() const { return planes[trained()]; }
  const Plane& changed() const { return planes[trained() + 1]; }
  // The position of the k-th plane of metadata that the table's configuration declares.
  size_t metadata(size_t k) const {
    if (!records_use()) return trained() + 2 + k;
    return k == 0 ? 1 + slots() : trained() + 1 + k;
  }
  // The arrays of keys and of change generations, by row number.
  int64_t* keys() const { return reinterpret_cast<int64_t*>(key().file->data()); }
  uint32_t* changed_generations() const {
    return reinterpret_cast<uint32_t*>(changed().file->data());
  }
};

// Returns the use of rows (row_use.h) in the form in which a table's configuration declares it.
MetadataPlane UseAsMetadata();
// Returns whether a table records the use of its rows: its first plane of metadata is that one.
bool RecordsUse(const TableConfig& config);

// Returns the bytes of a row in the first n planes.
size_t RowBytes(const PlaneList& list, size_t n);
// Returns the bytes of a row in some planes, whose positions in the list are bits of `planes`.
size_t RowBytesOf(const PlaneList& list, uint64_t planes);

// Returns the planes of a table with this configuration that is bound to `optimizer`. The slots get
// `generation`, the other planes `made`. The planes have no files yet.
PlaneList PlanesOf(const TableConfig& config, const OptimizerConfig& optimizer, uint32_t generation,
                   uint32_t made);

// Returns the metadata planes of a list, in the form in which a table's configuration declares
// them.
std::vector<MetadataPlane> MetadataOf(const PlaneList& list);

// Returns InvalidArgument for invalid metadata planes.
Status ValidateMetadata(const TableConfig& config);

// Converts a list to the content of its file, and back. DataLoss, naming the path: the content is
// not a list of planes, or this build does not know it.
PlaneListFile PlaneListToFile(const PlaneList& list);
Result<PlaneList> PlaneListFromFile(const PlaneListFile& file, const TableConfig& config,
                                    uint32_t generation, const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_PLANES_H_
