// The bytes of the sparse-parameter file. Internal to parameter_file_*.cc; docs/format.md
// describes the same for other implementations.
//
//   +--------------------+ 0
//   | ParameterFileHeader|
//   +--------------------+ 128
//   | block 0            |   min(n_rows, 4096) records, crc32c, 4 zero bytes
//   +--------------------+
//   | block 1            |
//   | ...                |
//   +--------------------+ file_bytes
//
//   record: | key 8 | row 4 * dim | slot 0 4 * dim | ... | zeros up to a multiple of 8 |
#ifndef TFSPS_CORE_FILES_PARAMETER_FILE_LAYOUT_H_
#define TFSPS_CORE_FILES_PARAMETER_FILE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/files/parameter_file.h"

namespace tsps {

constexpr uint32_t kParameterFileVersion = 1;
constexpr uint64_t kRowsPerBlock = 4096;
constexpr size_t kBlockTrailerBytes = 8;  // crc32c of the records, then zeros
// A record with all slots stays below 2 MiB, so that readers need no large buffer for a hostile
// file.
constexpr uint32_t kMaxParameterFileDim = 1 << 16;
// Like PNG's: a transfer that changes line ends, or cuts the eighth bit, is noticed in the first
// bytes.
constexpr unsigned char kParameterFileMagic[8] = {0xF4, 'T', 'S', 'P', 'S', '\r', '\n', 0x1A};

struct ParameterFileHeader {
  unsigned char magic[8];
  uint32_t version;         // the fields up to here and crc keep their places in every version
  uint32_t header_bytes;    // 128
  uint32_t dim;             // 1 to kMaxParameterFileDim
  uint32_t rows_per_block;  // kRowsPerBlock
  uint64_t n_rows;
  uint64_t step;
  uint32_t optimizer_kind;  // OptimizerKind
  uint32_t n_slots;         // SlotCount(optimizer_kind)
  float slot_init[kMaxSlots];
  uint32_t initializer_kind;  // InitializerKind
  float initializer_a;
  float initializer_b;
  uint32_t reserved0;  // 0
  uint64_t initializer_seed;
  uint64_t initializer_salt;
  uint64_t file_bytes;
  int64_t key_limit;      // 0: any int64 is a key
  uint32_t reserved1[3];  // 0
  uint32_t crc;           // of the 124 bytes before it
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
static_assert(offsetof(ParameterFileHeader, n_slots) == 44);
static_assert(offsetof(ParameterFileHeader, slot_init) == 48);
static_assert(offsetof(ParameterFileHeader, initializer_kind) == 64);
static_assert(offsetof(ParameterFileHeader, initializer_a) == 68);
static_assert(offsetof(ParameterFileHeader, initializer_b) == 72);
static_assert(offsetof(ParameterFileHeader, reserved0) == 76);
static_assert(offsetof(ParameterFileHeader, initializer_seed) == 80);
static_assert(offsetof(ParameterFileHeader, initializer_salt) == 88);
static_assert(offsetof(ParameterFileHeader, file_bytes) == 96);
static_assert(offsetof(ParameterFileHeader, key_limit) == 104);
static_assert(offsetof(ParameterFileHeader, reserved1) == 112);
static_assert(offsetof(ParameterFileHeader, crc) == 124);

// Where things are in a file of given dim, slots and rows.
struct ParameterFileGeometry {
  size_t record_bytes = 0;
  uint64_t n_blocks = 0;
  uint64_t file_bytes = 0;

  uint64_t BlockOffset(uint64_t block) const {
    return sizeof(ParameterFileHeader) +
           block * (kRowsPerBlock * record_bytes + kBlockTrailerBytes);
  }
};
// Refuses a dim out of range and sizes beyond what a file can have.
Result<ParameterFileGeometry> GeometryOf(uint32_t dim, int n_slots, uint64_t n_rows);

// The header of a new file. Refuses what could not be read back.
Result<ParameterFileHeader> EncodeHeader(const ParameterFileInfo& info);
// Checks everything about a header but the length of the file.
Result<ParameterFileInfo> DecodeHeader(const ParameterFileHeader& header, const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_FILES_PARAMETER_FILE_LAYOUT_H_
