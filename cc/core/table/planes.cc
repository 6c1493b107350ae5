#include "core/table/planes.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <set>

#include "core/base/crc32c.h"
#include "core/base/float_bits.h"

namespace tsps {
namespace {

template <typename T>
void FillWith(char* to, size_t bytes, uint64_t bits) {
  std::fill_n(reinterpret_cast<T*>(to), bytes / sizeof(T), static_cast<T>(bits));
}

struct TypeName {
  PlaneType type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {{PlaneType::kFloat32, "float32"},
                                   {PlaneType::kBfloat16, "bfloat16"},
                                   {PlaneType::kFloat16, "float16"},
                                   {PlaneType::kUint32, "uint32"},
                                   {PlaneType::kInt64, "int64"}};

}  // namespace

const char* PlaneTypeName(PlaneType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  return "unknown";
}

Result<PlaneType> PlaneTypeFromName(const std::string& name) {
  for (const TypeName& entry : kTypeNames) {
    if (name == entry.name) return entry.type;
  }
  return Error(Code::kInvalidArgument,
               "unknown type of a plane; expected float32, bfloat16, float16, uint32 or int64. "
               "Received: '",
               name, "'");
}

size_t ElementBytes(PlaneType type) {
  switch (type) {
    case PlaneType::kBfloat16:
    case PlaneType::kFloat16:
      return 2;
    case PlaneType::kFloat32:
    case PlaneType::kUint32:
      return 4;
    case PlaneType::kInt64:
      return 8;
  }
  return 0;
}

void Plane::Fill(char* rows, size_t n) const {
  switch (ElementBytes(type)) {
    case 2:
      return FillWith<uint16_t>(rows, n * row_bytes, initial);
    case 4:
      return FillWith<uint32_t>(rows, n * row_bytes, initial);
    default:
      return FillWith<uint64_t>(rows, n * row_bytes, initial);
  }
}

size_t RowBytesOf(const PlaneList& list, uint64_t planes) {
  size_t bytes = 0;
  for (size_t p = 0; p < list.planes.size(); ++p) {
    if ((planes >> p & 1) != 0) bytes += list.planes[p].row_bytes;
  }
  return bytes;
}

MetadataPlane UseAsMetadata() { return {kUsePlane, PlaneType::kUint32, 2, 0}; }

bool RecordsUse(const TableConfig& config) {
  if (config.metadata.empty()) return false;
  const MetadataPlane& first = config.metadata[0];
  const MetadataPlane use = UseAsMetadata();
  return first.name == use.name && first.type == use.type && first.elements == use.elements &&
         first.initial == use.initial;
}

size_t RowBytes(const PlaneList& list, size_t n) {
  size_t bytes = 0;
  for (size_t p = 0; p < n; ++p) bytes += list.planes[p].row_bytes;
  return bytes;
}

PlaneList PlanesOf(const TableConfig& config, const OptimizerConfig& optimizer, uint32_t generation,
                   uint32_t made) {
  const auto dim = static_cast<size_t>(config.dim);
  PlaneList list;
  list.generation = generation;
  list.optimizer = optimizer;
  list.planes.push_back({"embedding", PlaneRole::kEmbedding, config.row_type,
                         dim * ElementBytes(config.row_type), made, 0});
  for (int k = 0; k < SlotCount(optimizer.kind); ++k) {
    list.planes.push_back({SlotName(optimizer.kind, k), PlaneRole::kSlot, PlaneType::kFloat32,
                           SlotWidth(optimizer.kind, k, dim) * sizeof(float), generation,
                           BitsOf(optimizer.slot_init[k])});
  }
  const bool records_use = RecordsUse(config);
  if (records_use) {
    list.planes.push_back(
        {kUsePlane, PlaneRole::kUse, PlaneType::kUint32, sizeof(RowUse), made, 0});
  }
  list.planes.push_back({"key", PlaneRole::kKey, PlaneType::kInt64, sizeof(int64_t), made, 0});
  list.planes.push_back(
      {"changed", PlaneRole::kChanged, PlaneType::kUint32, sizeof(uint32_t), made, 0});
  for (size_t k = records_use ? 1 : 0; k < config.metadata.size(); ++k) {
    const MetadataPlane& plane = config.metadata[k];
    list.planes.push_back({plane.name, PlaneRole::kMetadata, plane.type,
                           plane.elements * ElementBytes(plane.type), made, plane.initial});
  }
  return list;
}

namespace {

// Returns whether bits are an infinity or a NaN of a type of floats.
bool IsNonFinite(PlaneType type, uint64_t bits) {
  const uint64_t exponent = type == PlaneType::kFloat32    ? 0x7F800000
                            : type == PlaneType::kBfloat16 ? 0x7F80
                            : type == PlaneType::kFloat16  ? 0x7C00
                                                           : 0;
  return exponent != 0 && (bits & exponent) == exponent;
}

}  // namespace

std::vector<MetadataPlane> MetadataOf(const PlaneList& list) {
  std::vector<MetadataPlane> metadata;
  const size_t n = list.planes.size() - 3 - list.slots();
  for (size_t k = 0; k < n; ++k) {
    const Plane& plane = list.planes[list.metadata(k)];
    metadata.push_back({plane.name, plane.type,
                        static_cast<uint32_t>(plane.row_bytes / ElementBytes(plane.type)),
                        plane.initial});
  }
  return metadata;
}

Status ValidateMetadata(const TableConfig& config) {
  const auto invalid = [&](const std::string& name, const auto&... problem) {
    return Error(Code::kInvalidArgument, "table ", config.name, ": metadata plane '", name, "' ",
                 problem...);
  };
  std::set<std::string> names = {"embedding", "key", "changed"};
  for (const MetadataPlane& plane : config.metadata) {
    const auto allowed = [](unsigned char c) {
      return (std::isalnum(c) != 0 && std::isupper(c) == 0) || c == '_';
    };
    if (plane.name.empty() || plane.name.size() >= sizeof(PlaneEntry::name) ||
        !std::all_of(plane.name.begin(), plane.name.end(), allowed)) {
      return invalid(plane.name, "must have a name of 1 to 31 characters of [a-z0-9_]");
    }
    const size_t bytes = ElementBytes(plane.type);
    if (bytes == 0 || plane.elements < 1 || plane.elements > kMaxDim) {
      return invalid(plane.name, "must have a known type and 1 to ", kMaxDim, " elements per row");
    }
    if (bytes < sizeof(plane.initial) && plane.initial >> (8 * bytes) != 0) {
      return invalid(plane.name, "has initial bits ", plane.initial,
                     ", more than an element of type ", PlaneTypeName(plane.type), " has");
    }
    if (IsNonFinite(plane.type, plane.initial))
      return invalid(plane.name, "must have a finite initial value");
    if (!names.insert(plane.name).second) return invalid(plane.name, "has a name that is taken");
    if (plane.name == kUsePlane && (&plane != config.metadata.data() || !RecordsUse(config))) {
      return invalid(plane.name, "must be the first one, with 2 elements of type uint32 and the ",
                     "initial value 0");
    }
  }
  constexpr size_t kMost = kMaxPlanes - 3 - kMaxSlots;
  if (config.metadata.size() <= kMost) return Status();
  return Error(Code::kInvalidArgument, "table ", config.name, ": at most ", kMost,
               " metadata planes. Received: ", config.metadata.size());
}

PlaneListFile PlaneListToFile(const PlaneList& list) {
  PlaneListFile file = {};
  file.magic = kPlanesMagic;
  file.version = kFormatVersion;
  file.layout_hash = TableLayoutHash();
  file.generation = list.generation;
  file.optimizer = static_cast<uint32_t>(list.optimizer.kind);
  file.n_planes = static_cast<uint32_t>(list.planes.size());
  for (size_t p = 0; p < list.planes.size(); ++p) {
    const Plane& plane = list.planes[p];
    PlaneEntry& entry = file.planes[p];
    std::memcpy(entry.name, plane.name.data(), plane.name.size());
    entry.role = static_cast<uint32_t>(plane.role);
    entry.type = static_cast<uint32_t>(plane.type);
    entry.row_bytes = static_cast<uint32_t>(plane.row_bytes);
    entry.generation = plane.generation;
    entry.initial = plane.initial;
  }
  file.crc = HeaderCrc(file);
  return file;
}

Result<PlaneList> PlaneListFromFile(const PlaneListFile& file, const TableConfig& config,
                                    uint32_t generation, const std::string& path) {
  if (file.magic != kPlanesMagic) {
    return Error(Code::kDataLoss, path, " is not a table's list of planes");
  }
  TSPS_RETURN_IF_ERROR(CheckFormat(file.version, file.layout_hash, TableLayoutHash(), path));
  if (file.crc != HeaderCrc(file)) return Damaged(path, "checksum mismatch");
  if (file.generation != generation || !IsOptimizerKind(file.optimizer)) {
    return Damaged(path, "generation ", file.generation, ", optimizer ", file.optimizer);
  }
  OptimizerConfig optimizer;
  optimizer.kind = static_cast<OptimizerKind>(file.optimizer);
  const auto slots = static_cast<uint32_t>(SlotCount(optimizer.kind));
  for (uint32_t k = 0; k < slots && 1 + k < kMaxPlanes; ++k) {
    optimizer.slot_init[k] = FloatOf(static_cast<uint32_t>(file.planes[1 + k].initial));
    if (std::isfinite(optimizer.slot_init[k])) continue;
    return Damaged(path, "initial slot value ", optimizer.slot_init[k]);
  }
  TableConfig with_metadata = config;
  with_metadata.metadata.clear();
  for (uint32_t p = 1 + slots; p < std::min<uint32_t>(file.n_planes, kMaxPlanes); ++p) {
    const PlaneEntry& entry = file.planes[p];
    const auto role = static_cast<PlaneRole>(entry.role);
    if (role == PlaneRole::kKey || role == PlaneRole::kChanged) continue;
    const size_t bytes = ElementBytes(static_cast<PlaneType>(entry.type));
    with_metadata.metadata.push_back(
        {std::string(entry.name, strnlen(entry.name, sizeof(entry.name))),
         static_cast<PlaneType>(entry.type),
         bytes == 0 ? 0 : static_cast<uint32_t>(entry.row_bytes / bytes), entry.initial});
  }
  const Status metadata = ValidateMetadata(with_metadata);
  if (!metadata.ok()) return Damaged(path, metadata.message());
  // The file must have exactly the planes that this build would write.
  PlaneList list = PlanesOf(with_metadata, optimizer, generation, file.planes[0].generation);
  const PlaneListFile expected = PlaneListToFile(list);
  if (std::memcmp(&expected, &file, sizeof(file)) == 0) return list;
  return Damaged(path, "its planes are not those of a table of ", config.dim,
                 " floats with optimizer ", OptimizerKindName(optimizer.kind));
}

}  // namespace tsps
