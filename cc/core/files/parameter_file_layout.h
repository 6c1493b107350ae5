// The bytes of the sparse-parameter file. Internal to parameter_file_*.cc; docs/format.md describes
// the same for other implementations.
//
//   +--------------------+ 0
//   | ParameterFileHeader|
//   +--------------------+ 128
//   | ParameterFilePlane |   n_planes of them
//   +--------------------+ header_bytes
//   | block 0            |   min(n_rows, 4096) records, crc32c, 4 zero bytes
//   +--------------------+
//   | block 1            |
//   | ...                |
//   +--------------------+ file_bytes
//
//   record: | key 8 | row_bytes of each plane | zeros up to a multiple of 8 |
//
// A file of version 2 does not record which optimizer made its slots. A file of version 1 has no
// ParameterFilePlane: blocks begin at 128, and a record has the key, the row and the optimizer's
// slots, each of them 4 * dim bytes.
#ifndef TFSPS_CORE_FILES_PARAMETER_FILE_LAYOUT_H_
#define TFSPS_CORE_FILES_PARAMETER_FILE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/files/parameter_file.h"

namespace tsps {

constexpr uint32_t kParameterFileVersion = 3;  // of files that are written
constexpr uint64_t kRowsPerBlock = 4096;
constexpr size_t kBlockTrailerBytes = 8;  // crc32c of the records, then zeros
// Limits a record with all planes to less than 8 MiB, so that no file can make readers allocate a
// large buffer.
constexpr uint32_t kMaxParameterFileDim = 1 << 16;
// As with PNG, the first bytes reveal a transfer that changed line ends or cleared the eighth bit.
constexpr unsigned char kParameterFileMagic[8] = {0xF4, 'T', 'S', 'P', 'S', '\r', '\n', 0x1A};

struct ParameterFileHeader {
  unsigned char magic[8];
  uint32_t version;         // fields up to here, and crc, have the same place in every version
  uint32_t header_bytes;    // list of planes included; version 1: 128
  uint32_t dim;             // 1 to kMaxParameterFileDim
  uint32_t rows_per_block;  // kRowsPerBlock
  uint64_t n_rows;
  uint64_t step;
  uint32_t optimizer_kind;  // OptimizerKind
  uint32_t n_planes;        // version 1: SlotCount(optimizer_kind)
  // The optimizer that made the slots (OptimizerUse). Version 2: 0, 0; version 1: float[4], the
  // slots' initial values.
  uint64_t optimizer_id;
  uint64_t optimizer_steps;
  uint32_t initializer_kind;  // InitializerKind
  float initializer_a;
  float initializer_b;
  uint32_t reserved0;  // 0
  uint64_t initializer_seed;
  uint64_t initializer_salt;
  uint64_t file_bytes;
  int64_t key_limit;    // 0: any int64 is a key
  uint32_t planes_crc;  // of the list of planes; version 1: 0
  uint32_t node;        // Shard, by kOwnerSeed (base/key_owner.h); 0, 0: a whole table
  uint32_t nodes;       // version 1: 0, 0
  uint32_t crc;         // of the 124 bytes before it
};

// This is not the PlaneEntry of a group, because the format of groups changes independently.
struct ParameterFilePlane {
  char name[32];       // padded with zeros
  uint32_t role;       // PlaneRole: embedding, slot or metadata
  uint32_t type;       // PlaneType
  uint32_t row_bytes;  // whole elements
  uint32_t reserved0;  // 0
  uint64_t initial;    // bits of an element of a new row; embedding: 0
  uint64_t reserved1;  // 0
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are stored as they are in memory");
static_assert(sizeof(ParameterFileHeader) == 128);
static_assert(offsetof(ParameterFileHeader, version) == 8);
static_assert(offsetof(ParameterFileHeader, header_bytes) == 12);
static_assert(offsetof(ParameterFileHeader, dim) == 16);
static_assert(offsetof(ParameterFileHeader, rows_per_block) == 20);
static_assert(offsetof(ParameterFileHeader, n_rows) == 24);
static_assert(offsetof(ParameterFileHeader, step) == 32);
static_assert(offsetof(ParameterFileHeader, optimizer_kind) == 40);
static_assert(offsetof(ParameterFileHeader, n_planes) == 44);
static_assert(offsetof(ParameterFileHeader, optimizer_id) == 48);
static_assert(offsetof(ParameterFileHeader, optimizer_steps) == 56);
static_assert(offsetof(ParameterFileHeader, initializer_kind) == 64);
static_assert(offsetof(ParameterFileHeader, initializer_a) == 68);
static_assert(offsetof(ParameterFileHeader, initializer_b) == 72);
static_assert(offsetof(ParameterFileHeader, reserved0) == 76);
static_assert(offsetof(ParameterFileHeader, initializer_seed) == 80);
static_assert(offsetof(ParameterFileHeader, initializer_salt) == 88);
static_assert(offsetof(ParameterFileHeader, file_bytes) == 96);
static_assert(offsetof(ParameterFileHeader, key_limit) == 104);
static_assert(offsetof(ParameterFileHeader, planes_crc) == 112);
static_assert(offsetof(ParameterFileHeader, node) == 116);
static_assert(offsetof(ParameterFileHeader, nodes) == 120);
static_assert(offsetof(ParameterFileHeader, crc) == 124);
static_assert(sizeof(ParameterFilePlane) == 64);
static_assert(offsetof(ParameterFilePlane, role) == 32);
static_assert(offsetof(ParameterFilePlane, type) == 36);
static_assert(offsetof(ParameterFilePlane, row_bytes) == 40);
static_assert(offsetof(ParameterFilePlane, initial) == 48);
// Files of version 2 and 3 have these numbers.
static_assert(static_cast<uint32_t>(PlaneRole::kEmbedding) == 1 &&
              static_cast<uint32_t>(PlaneRole::kSlot) == 2 &&
              static_cast<uint32_t>(PlaneRole::kMetadata) == 5);
static_assert(static_cast<uint32_t>(PlaneType::kFloat32) == 1 &&
              static_cast<uint32_t>(PlaneType::kBfloat16) == 2 &&
              static_cast<uint32_t>(PlaneType::kFloat16) == 3 &&
              static_cast<uint32_t>(PlaneType::kUint32) == 4 &&
              static_cast<uint32_t>(PlaneType::kInt64) == 5);
constexpr uint32_t kMaxParameterFilePlanes = kMaxPlanes - 2;  // all but the key and `changed`

// The sizes and offsets of a file.
struct ParameterFileGeometry {
  size_t header_bytes = 0;  // list of planes included
  size_t record_bytes = 0;
  uint64_t n_blocks = 0;
  uint64_t file_bytes = 0;

  uint64_t BlockOffset(uint64_t block) const {
    return header_bytes + block * (kRowsPerBlock * record_bytes + kBlockTrailerBytes);
  }
};
// Returns the geometry of a file. InvalidArgument: dim is out of range, metadata are invalid, or a
// file cannot have this size.
Result<ParameterFileGeometry> GeometryOf(const ParameterFileInfo& info,
                                         uint32_t version = kParameterFileVersion);

// Returns the header and the list of planes of a new file. InvalidArgument: the file could not be
// read back.
Result<std::string> EncodeHeader(const ParameterFileInfo& info);
// Returns an error for a header that is foreign, damaged or newer. Otherwise its length, and that
// of its list of planes, are plausible.
Status CheckHeader(const ParameterFileHeader& header, const std::string& path);
// Returns how many ParameterFilePlane follow a header that has passed CheckHeader.
size_t PlaneEntries(const ParameterFileHeader& header);
// Checks everything else about a header and its list of planes, except the length of the file.
Result<ParameterFileInfo> DecodeHeader(const ParameterFileHeader& header,
                                       const std::vector<ParameterFilePlane>& planes,
                                       const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_FILES_PARAMETER_FILE_LAYOUT_H_
