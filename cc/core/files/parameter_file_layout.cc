#include "core/files/parameter_file_layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/crc32c.h"

namespace tsps {
namespace {

Status Damaged(const std::string& path, const std::string& what) {
  return Error(Code::kDataLoss, "damaged parameter file ", path, ": ", what);
}

// What this version has fields for.
bool HasSlotsAsWideAsRows(OptimizerKind kind) { return kind <= OptimizerKind::kAdam; }

}  // namespace

Result<ParameterFileGeometry> GeometryOf(uint32_t dim, int n_slots, uint64_t n_rows) {
  if (dim < 1 || dim > kMaxParameterFileDim) {
    return Error(Code::kInvalidArgument, "dim must be in [1, ", kMaxParameterFileDim,
                 "]. Received: ", dim);
  }
  ParameterFileGeometry geometry;
  const size_t record = sizeof(int64_t) + sizeof(float) * size_t{dim} * (1 + n_slots);
  geometry.record_bytes = (record + 7) / 8 * 8;
  geometry.n_blocks = n_rows / kRowsPerBlock + (n_rows % kRowsPerBlock != 0);
  // off_t is signed.
  uint64_t records = 0, trailers = 0, bytes = sizeof(ParameterFileHeader);
  if (__builtin_mul_overflow(n_rows, geometry.record_bytes, &records) ||
      __builtin_mul_overflow(geometry.n_blocks, kBlockTrailerBytes, &trailers) ||
      __builtin_add_overflow(bytes, records, &bytes) ||
      __builtin_add_overflow(bytes, trailers, &bytes) ||
      bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Error(Code::kInvalidArgument, "no file can hold n_rows=", n_rows, " records of ",
                 geometry.record_bytes, " bytes");
  }
  geometry.file_bytes = bytes;
  return geometry;
}

Result<ParameterFileHeader> EncodeHeader(const ParameterFileInfo& info) {
  TSPS_RETURN_IF_ERROR(ValidateInitializer(info.initializer));
  const int n_slots = SlotCount(info.optimizer.kind);
  if (!HasSlotsAsWideAsRows(info.optimizer.kind)) {
    return Error(Code::kInvalidArgument, "a parameter file of version ", kParameterFileVersion,
                 " has no slots of optimizer ", OptimizerKindName(info.optimizer.kind),
                 ": they are not as wide as rows");
  }
  TSPS_ASSIGN_OR_RETURN(const ParameterFileGeometry geometry,
                        GeometryOf(info.dim, n_slots, info.n_rows));
  ParameterFileHeader header;
  std::memset(&header, 0, sizeof(header));
  std::memcpy(header.magic, kParameterFileMagic, sizeof(header.magic));
  header.version = kParameterFileVersion;
  header.header_bytes = sizeof(header);
  header.dim = info.dim;
  if (info.key_limit < 0) {
    return Error(Code::kInvalidArgument,
                 "key_limit must not be negative. Received: ", info.key_limit);
  }
  header.key_limit = info.key_limit;
  header.rows_per_block = kRowsPerBlock;
  header.n_rows = info.n_rows;
  header.step = info.step;
  header.optimizer_kind = static_cast<uint32_t>(info.optimizer.kind);
  header.n_slots = static_cast<uint32_t>(n_slots);
  for (int slot = 0; slot < kMaxSlots; ++slot) {
    if (!std::isfinite(info.optimizer.slot_init[slot])) {
      return Error(Code::kInvalidArgument, "initial value of optimizer slot ", slot,
                   " must be finite. Received: ", info.optimizer.slot_init[slot]);
    }
    header.slot_init[slot] = info.optimizer.slot_init[slot];
  }
  header.initializer_kind = static_cast<uint32_t>(info.initializer.kind);
  header.initializer_a = info.initializer.a;
  header.initializer_b = info.initializer.b;
  header.initializer_seed = info.initializer.seed;
  header.initializer_salt = info.initializer.salt;
  header.file_bytes = geometry.file_bytes;
  header.crc = HeaderCrc(header);
  return header;
}

Result<ParameterFileInfo> DecodeHeader(const ParameterFileHeader& header, const std::string& path) {
  if (std::memcmp(header.magic, kParameterFileMagic, sizeof(header.magic)) != 0) {
    return Error(Code::kDataLoss, "foreign file ", path,
                 ": it does not start with the magic bytes of a "
                 "sparse-parameter file");
  }
  // Before the version: a damaged version number should not be called a newer file.
  const uint32_t crc = HeaderCrc(header);
  if (crc != header.crc) {
    return Error(Code::kDataLoss, "damaged parameter file ", path, ": header checksum is ",
                 header.crc, ", expected ", crc);
  }
  if (header.version > kParameterFileVersion) {
    return Error(Code::kFailedPrecondition, "newer parameter file ", path,
                 ": it has format version ", header.version, ", this program reads up to ",
                 kParameterFileVersion);
  }
  const bool no_reserved =
      header.reserved0 == 0 && std::all_of(std::begin(header.reserved1), std::end(header.reserved1),
                                           [](uint32_t word) { return word == 0; });
  if (header.version < 1 || header.header_bytes != sizeof(header) ||
      header.rows_per_block != kRowsPerBlock || !no_reserved) {
    return Damaged(path, "impossible header fields");
  }
  ParameterFileInfo info;
  info.dim = header.dim;
  info.n_rows = header.n_rows;
  info.key_limit = header.key_limit;
  if (info.key_limit < 0) return Damaged(path, "negative key_limit");
  info.step = header.step;
  info.optimizer.kind = static_cast<OptimizerKind>(header.optimizer_kind);
  if (!IsOptimizerKind(header.optimizer_kind) || !HasSlotsAsWideAsRows(info.optimizer.kind)) {
    return Damaged(path, "unknown optimizer kind " + std::to_string(header.optimizer_kind));
  }
  const int n_slots = SlotCount(info.optimizer.kind);
  if (header.n_slots != static_cast<uint32_t>(n_slots)) {
    return Damaged(path, std::string("optimizer ") + OptimizerKindName(info.optimizer.kind) +
                             " has " + std::to_string(n_slots) + " slots, the header says " +
                             std::to_string(header.n_slots));
  }
  for (int slot = 0; slot < kMaxSlots; ++slot) {
    info.optimizer.slot_init[slot] = header.slot_init[slot];
    if (!std::isfinite(header.slot_init[slot]))
      return Damaged(path, "non-finite initial slot value");
  }
  info.initializer.kind = static_cast<InitializerKind>(header.initializer_kind);
  info.initializer.a = header.initializer_a;
  info.initializer.b = header.initializer_b;
  info.initializer.seed = header.initializer_seed;
  info.initializer.salt = header.initializer_salt;
  const Status initializer = ValidateInitializer(info.initializer);
  if (!initializer.ok()) return Damaged(path, initializer.message());
  const Result<ParameterFileGeometry> geometry = GeometryOf(info.dim, n_slots, info.n_rows);
  if (!geometry.ok()) return Damaged(path, geometry.status().message());
  if (geometry->file_bytes != header.file_bytes) {
    return Damaged(path, "the header says " + std::to_string(header.file_bytes) +
                             " bytes, its rows need " + std::to_string(geometry->file_bytes));
  }
  return info;
}

}  // namespace tsps
