// The bytes of sparse gradients on the wire. Internal to wire_*.cc; docs/format.md describes them
// for other implementations.
//
//   +----------------+ 0
//   | WireHeader     |
//   +----------------+ 40
//   | WireTable 0    |
//   | WireTable 1    |
//   | ...            |
//   +----------------+
//   | keys 0         |   bit blocks of key[i + 1] - key[i] - 1, modulo 2^64
//   | counts 0       |   bit blocks of count[i] - 1; nothing if all counts are 1
//   | keys 1         |
//   | ...            |
//   +----------------+ up to a multiple of 64, zeros
//   | rows 0         | <- rows_begin
//   +----------------+ up to a multiple of 64, zeros
//   | rows 1         |
//   | ...            |
//   +----------------+ bytes
//   | padding        |   not a part of the format
//   +----------------+
#ifndef TFSPS_CORE_WIRE_WIRE_LAYOUT_H_
#define TFSPS_CORE_WIRE_WIRE_LAYOUT_H_

#include <climits>
#include <cstddef>
#include <cstdint>

#include "core/base/crc32c.h"

namespace tsps {

constexpr uint32_t kWireVersion = 2;  // 1: counts have no occurrences
constexpr unsigned char kWireMagic[8] = {'t', 's', 'p', 's', 'w', 'i', 'r', 'e'};
constexpr size_t kMaxWireRows = INT32_MAX;  // per table
constexpr size_t kMaxWireDim = 1 << 16;     // the limit of tables
constexpr int kKeyBits = 64;
constexpr int kCountBits = 31;

struct WireHeader {
  unsigned char magic[8];
  uint32_t version;     // magic, version, rows_begin and crc keep their places in every version
  uint32_t type;        // WireType
  uint64_t rows_begin;  // multiple of 64
  uint64_t bytes;       // without padding
  uint32_t n_tables;
  uint32_t crc;  // of the 36 bytes before it and of those from it to rows_begin
};

struct WireTable {
  int64_t first_key;     // the smallest; 0 if n is 0
  uint32_t n;            // 0 to kMaxWireRows
  uint32_t dim;          // 0 to kMaxWireDim
  uint64_t key_bytes;    // of the coded keys, n - 1 numbers
  uint64_t count_bytes;  // of the coded counts, n numbers; 0: all are 1
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are stored as they are in memory");
static_assert(sizeof(WireHeader) == 40);
static_assert(offsetof(WireHeader, version) == 8);
static_assert(offsetof(WireHeader, type) == 12);
static_assert(offsetof(WireHeader, rows_begin) == 16);
static_assert(offsetof(WireHeader, bytes) == 24);
static_assert(offsetof(WireHeader, n_tables) == 32);
static_assert(offsetof(WireHeader, crc) == 36);
static_assert(sizeof(WireTable) == 32);
static_assert(offsetof(WireTable, first_key) == 0);
static_assert(offsetof(WireTable, n) == 8);
static_assert(offsetof(WireTable, dim) == 12);
static_assert(offsetof(WireTable, key_bytes) == 16);
static_assert(offsetof(WireTable, count_bytes) == 24);

// Returns the next offset where rows may begin: in a buffer whose address is a multiple of 64,
// float32 rows are aligned.
inline uint64_t WireAligned(uint64_t offset) { return (offset + 63) / 64 * 64; }

// Returns the checksum of a buffer's first rows_begin bytes, at least the header, without the
// checksum field. The buffer may have any alignment.
inline uint32_t WireCrc(const uint8_t* data, uint64_t rows_begin) {
  const uint32_t crc = Crc32c(0, data, offsetof(WireHeader, crc));
  return Crc32c(crc, data + sizeof(WireHeader), rows_begin - sizeof(WireHeader));
}

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_LAYOUT_H_
