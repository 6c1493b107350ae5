#include "core/files/parameter_file_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/crc32c.h"
#include "core/base/float_bits.h"

namespace tsps {
namespace {

template <typename... Args>
Status DamagedFile(const std::string& path, const Args&... damage) {
  return Error(Code::kDataLoss, "damaged parameter file ", path, ": ", damage...);
}

// Returns whether version 1 has fields for this optimizer: all its slots are as wide as a row.
bool IsOfVersion1(uint32_t optimizer_kind) {
  return optimizer_kind <= static_cast<uint32_t>(OptimizerKind::kAdam);
}

TableConfig ConfigOf(const ParameterFileInfo& info) {
  TableConfig config;
  config.name = "of the file";
  config.dim = info.dim;
  config.metadata = info.metadata;
  config.row_type = info.row_type;
  return config;
}

std::vector<ParameterFilePlane> EncodePlanes(const ParameterFileInfo& info) {
  std::vector<ParameterFilePlane> entries;
  for (const Plane& plane : PlanesOf(info)) {
    ParameterFilePlane entry = {};
    std::memcpy(entry.name, plane.name.data(), plane.name.size());
    const bool metadata = plane.role == PlaneRole::kUse;  // readers need not know its meaning
    entry.role = static_cast<uint32_t>(metadata ? PlaneRole::kMetadata : plane.role);
    entry.type = static_cast<uint32_t>(plane.type);
    entry.row_bytes = static_cast<uint32_t>(plane.row_bytes);
    entry.initial = plane.initial;
    entries.push_back(entry);
  }
  return entries;
}

uint32_t CrcOf(const std::vector<ParameterFilePlane>& planes) {
  return Crc32c(0, planes.data(), planes.size() * sizeof(planes[0]));
}

// Sets slots and metadata from a list of planes, which must have an entry for each slot. The caller
// finds invalid planes, by encoding the result again.
Status DecodePlanes(const std::vector<ParameterFilePlane>& planes, const std::string& path,
                    ParameterFileInfo* info) {
  const auto slots = static_cast<size_t>(SlotCount(info->optimizer.kind));
  for (size_t k = 0; k < slots; ++k) {
    info->optimizer.slot_init[k] = FloatOf(static_cast<uint32_t>(planes[1 + k].initial));
    if (std::isfinite(info->optimizer.slot_init[k])) continue;
    return DamagedFile(path, "non-finite initial slot value");
  }
  for (size_t p = 1 + slots; p < planes.size(); ++p) {
    const ParameterFilePlane& entry = planes[p];
    const auto type = static_cast<PlaneType>(entry.type);
    const size_t bytes = ElementBytes(type);
    info->metadata.push_back({std::string(entry.name, strnlen(entry.name, sizeof(entry.name))),
                              type, bytes == 0 ? 0 : static_cast<uint32_t>(entry.row_bytes / bytes),
                              entry.initial});
  }
  return Status();
}

}  // namespace

std::vector<Plane> PlanesOf(const ParameterFileInfo& info) {
  const PlaneList list = PlanesOf(ConfigOf(info), info.optimizer, 0, 0);
  std::vector<Plane> planes;
  for (const Plane& plane : list.planes) {
    if (plane.role != PlaneRole::kKey && plane.role != PlaneRole::kChanged) planes.push_back(plane);
  }
  return planes;
}

Result<ParameterFileGeometry> GeometryOf(const ParameterFileInfo& info, uint32_t version) {
  if (info.dim < 1 || info.dim > kMaxParameterFileDim) {
    return Error(Code::kInvalidArgument, "dim must be in [1, ", kMaxParameterFileDim,
                 "]. Received: ", info.dim);
  }
  TSPS_RETURN_IF_ERROR(ValidateMetadata(ConfigOf(info)));
  const std::vector<Plane> planes = PlanesOf(info);
  ParameterFileGeometry geometry;
  geometry.header_bytes = sizeof(ParameterFileHeader);
  if (version > 1) geometry.header_bytes += planes.size() * sizeof(ParameterFilePlane);
  size_t record = sizeof(int64_t);
  for (const Plane& plane : planes) record += plane.row_bytes;
  geometry.record_bytes = (record + 7) / 8 * 8;
  geometry.n_blocks = info.n_rows / kRowsPerBlock + (info.n_rows % kRowsPerBlock != 0);
  // off_t is signed.
  uint64_t records = 0, trailers = 0, bytes = geometry.header_bytes;
  if (__builtin_mul_overflow(info.n_rows, geometry.record_bytes, &records) ||
      __builtin_mul_overflow(geometry.n_blocks, kBlockTrailerBytes, &trailers) ||
      __builtin_add_overflow(bytes, records, &bytes) ||
      __builtin_add_overflow(bytes, trailers, &bytes) ||
      bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Error(Code::kInvalidArgument, "no file can hold n_rows=", info.n_rows, " records of ",
                 geometry.record_bytes, " bytes");
  }
  geometry.file_bytes = bytes;
  return geometry;
}

Result<std::string> EncodeHeader(const ParameterFileInfo& info) {
  TSPS_RETURN_IF_ERROR(ValidateInitializer(info.initializer));
  TSPS_RETURN_IF_ERROR(ValidateShard(info.shard));
  TSPS_ASSIGN_OR_RETURN(const ParameterFileGeometry geometry, GeometryOf(info));
  if (info.key_limit < 0) {
    return Error(Code::kInvalidArgument,
                 "key_limit must not be negative. Received: ", info.key_limit);
  }
  for (int slot = 0; slot < SlotCount(info.optimizer.kind); ++slot) {
    if (std::isfinite(info.optimizer.slot_init[slot])) continue;
    return Error(Code::kInvalidArgument, "initial value of optimizer slot ", slot,
                 " must be finite. Received: ", info.optimizer.slot_init[slot]);
  }
  const std::vector<ParameterFilePlane> planes = EncodePlanes(info);
  ParameterFileHeader header;
  std::memset(&header, 0, sizeof(header));
  std::memcpy(header.magic, kParameterFileMagic, sizeof(header.magic));
  header.version = kParameterFileVersion;
  header.header_bytes = static_cast<uint32_t>(geometry.header_bytes);
  header.dim = info.dim;
  header.key_limit = info.key_limit;
  header.rows_per_block = kRowsPerBlock;
  header.n_rows = info.n_rows;
  header.step = info.step;
  header.optimizer_kind = static_cast<uint32_t>(info.optimizer.kind);
  header.n_planes = static_cast<uint32_t>(planes.size());
  header.optimizer_id = info.trained_by.id;
  header.optimizer_steps = info.trained_by.steps;
  header.initializer_kind = static_cast<uint32_t>(info.initializer.kind);
  header.initializer_a = info.initializer.a;
  header.initializer_b = info.initializer.b;
  header.initializer_seed = info.initializer.seed;
  header.initializer_salt = info.initializer.salt;
  header.file_bytes = geometry.file_bytes;
  header.planes_crc = CrcOf(planes);
  header.node = info.shard.node;
  header.nodes = info.shard.nodes;
  header.crc = HeaderCrc(header);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(planes.data()), planes.size() * sizeof(planes[0]));
  return bytes;
}

size_t PlaneEntries(const ParameterFileHeader& header) {
  return header.version == 1 ? 0 : header.n_planes;
}

Status CheckHeader(const ParameterFileHeader& header, const std::string& path) {
  if (std::memcmp(header.magic, kParameterFileMagic, sizeof(header.magic)) != 0) {
    return Error(Code::kDataLoss, "foreign file ", path,
                 ": it does not start with the magic bytes of a "
                 "sparse-parameter file");
  }
  // The checksum comes before the version, so that a damaged version number does not look like a
  // newer file.
  const uint32_t crc = HeaderCrc(header);
  if (crc != header.crc) {
    return Error(Code::kDataLoss, "damaged parameter file ", path, ": header checksum is ",
                 header.crc, ", expected ", crc);
  }
  if (header.version > kParameterFileVersion) {
    return Error(Code::kFailedPrecondition, "newer parameter file ", path,
                 ": it has format version ", header.version,
                 ". This version of tf_sparse_ps reads format versions 1 to ",
                 kParameterFileVersion,
                 ". Read the file with the version that wrote it, or with a later one");
  }
  bool possible = header.version >= 1 && header.rows_per_block == kRowsPerBlock &&
                  header.reserved0 == 0 && ValidateShard({header.node, header.nodes}).ok();
  if (header.version == 1) {
    possible = possible && header.planes_crc == 0 && header.nodes == 0;
  } else {
    possible = possible && header.n_planes >= 1 && header.n_planes <= kMaxParameterFilePlanes;
  }
  if (header.version == 2) {
    possible = possible && header.optimizer_id == 0 && header.optimizer_steps == 0;
  }
  if (!possible) return DamagedFile(path, "impossible header fields");
  const size_t bytes = sizeof(header) + PlaneEntries(header) * sizeof(ParameterFilePlane);
  if (header.header_bytes == bytes) return Status();
  return DamagedFile(path, "a header of ", header.header_bytes, " bytes, where one with ",
                     PlaneEntries(header), " planes has ", bytes);
}

Result<ParameterFileInfo> DecodeHeader(const ParameterFileHeader& header,
                                       const std::vector<ParameterFilePlane>& planes,
                                       const std::string& path) {
  ParameterFileInfo info;
  info.dim = header.dim;
  info.n_rows = header.n_rows;
  info.key_limit = header.key_limit;
  if (info.key_limit < 0) return DamagedFile(path, "negative key_limit");
  info.step = header.step;
  info.shard = {header.node, header.nodes};
  info.optimizer.kind = static_cast<OptimizerKind>(header.optimizer_kind);
  if (!IsOptimizerKind(header.optimizer_kind) ||
      (header.version == 1 && !IsOfVersion1(header.optimizer_kind))) {
    return DamagedFile(path, "unknown optimizer kind ", header.optimizer_kind);
  }
  const auto n_slots = static_cast<uint32_t>(SlotCount(info.optimizer.kind));
  if (header.version == 1 ? header.n_planes != n_slots : header.n_planes < 1 + n_slots) {
    return DamagedFile(path, "optimizer ", OptimizerKindName(info.optimizer.kind), " has ", n_slots,
                       " slots, and the header has ", header.n_planes,
                       header.version == 1 ? "" : " planes");
  }
  if (header.version == 1) {
    static_assert(sizeof(info.optimizer.slot_init) == 2 * sizeof(uint64_t), "as version 1 has it");
    std::memcpy(info.optimizer.slot_init, &header.optimizer_id, sizeof(info.optimizer.slot_init));
    for (int slot = 0; slot < kMaxSlots; ++slot) {
      if (!std::isfinite(info.optimizer.slot_init[slot]))
        return DamagedFile(path, "non-finite initial slot value");
    }
  } else {
    info.trained_by = {header.optimizer_id, header.optimizer_steps};
    if (CrcOf(planes) != header.planes_crc) {
      return DamagedFile(path, "the list of planes has checksum ", CrcOf(planes), ", expected ",
                         header.planes_crc);
    }
    info.row_type = static_cast<PlaneType>(planes[0].type);
    if (!IsRowType(info.row_type)) return DamagedFile(path, "rows of type ", planes[0].type);
    TSPS_RETURN_IF_ERROR(DecodePlanes(planes, path, &info));
  }
  info.initializer.kind = static_cast<InitializerKind>(header.initializer_kind);
  info.initializer.a = header.initializer_a;
  info.initializer.b = header.initializer_b;
  info.initializer.seed = header.initializer_seed;
  info.initializer.salt = header.initializer_salt;
  const Status initializer = ValidateInitializer(info.initializer);
  if (!initializer.ok()) return DamagedFile(path, initializer.message());
  const Result<ParameterFileGeometry> geometry = GeometryOf(info, header.version);
  if (!geometry.ok()) return DamagedFile(path, geometry.status().message());
  if (geometry->file_bytes != header.file_bytes) {
    return DamagedFile(path, "the header has a size of ", header.file_bytes,
                       " bytes, and its rows need ", geometry->file_bytes);
  }
  // The file must have exactly the planes that this build would write.
  if (header.version == 1) return info;
  const std::vector<ParameterFilePlane> expected = EncodePlanes(info);
  if (std::memcmp(expected.data(), planes.data(), planes.size() * sizeof(planes[0])) == 0)
    return info;
  return DamagedFile(path, "its planes are not those of rows of ", info.dim,
                     " floats with optimizer ", OptimizerKindName(info.optimizer.kind));
}

}  // namespace tsps
