// The bytes of a serving file: rows of a table for inference, in one immutable file that any number
// of processes map read-only. docs/format.md describes the same for other implementations.
//
//   +---------------+ 0
//   | ServingHeader |  zeros up to 4,096
//   +---------------+ 4,096
//   | index         |  Bucket[n_buckets]
//   +---------------+ filter_at, a multiple of 4,096
//   | filter        |  FilterBlock[filter_blocks]; only layers have one
//   +---------------+ cover_at, a multiple of 4,096
//   | cover         |  FilterBlock[cover_blocks]; only layers have one
//   +---------------+ rows_at, a multiple of 4,096, or of 2 MiB if rows have 32 MiB or more
//   | rows          |  n_rows rows of row_bytes, in the order of the keys in the buckets
//   +---------------+ crcs_at, a multiple of 8
//   | checksums     |  uint32 CRC-32C of each block of 64 KiB of each section before
//   +---------------+ file_bytes
//
// A base has rows of all keys. A layer has the rows that changed, and the keys that were erased,
// since the files below it were written.
//
// The hash of a key leads to its home bucket, and more: HashKey is a bijection, and homes ascend
// with hashes. So files are written from front to back, and merged like sorted lists. A bucket with
// more than 7 keys of its own hands the rest, its guests, to the next buckets that have space. Its
// word says how far the farthest guest is. So one cache line tells in most cases whether a key is
// in the file, and where its row is.
#ifndef TFSPS_CORE_SERVING_SERVING_LAYOUT_H_
#define TFSPS_CORE_SERVING_SERVING_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/base/crc32c.h"

namespace tsps {

constexpr uint32_t kServingVersion = 1;
// As with PNG, the first bytes reveal a transfer that changed line ends or cleared the eighth bit.
constexpr unsigned char kServingMagic[8] = {0xF4, 'T', 'S', 'R', 'V', '\r', '\n', 0x1A};
constexpr uint64_t kServingPage = 4096;
constexpr uint64_t kServingPiece = uint64_t{2} << 20;   // a huge page, and the size of a write
constexpr uint64_t kServingBlock = uint64_t{64} << 10;  // bytes under one checksum
constexpr uint64_t kHugeRows = uint64_t{32} << 20;      // such rows begin at a huge page
constexpr double kBucketLoad = 0.75;                    // of a bucket's 7 places, on average
constexpr uint64_t kFilterBitsPerKey = 10;              // 1.3 % of other keys pass
constexpr uint64_t kMaxServingRows = uint64_t{1} << 40;

struct Bucket {
  static constexpr unsigned kKeys = 7;
  static constexpr uint64_t kMaxDistance = 255;

  // Bits 0 to 39: the number of the first row. Bits 40 to 46: which keys are in use. Bits 48 to 54:
  // which of them are erased; these have no row. Bits 56 to 63: how many buckets the farthest guest
  // is away.
  uint64_t word;
  int64_t keys[kKeys];

  uint64_t first_row() const { return word & (kMaxServingRows - 1); }
  unsigned used() const { return static_cast<unsigned>(word >> 40) & 127; }
  unsigned erased() const { return static_cast<unsigned>(word >> 48) & 127; }
  uint64_t distance() const { return word >> 56; }
  static uint64_t Word(uint64_t first_row, unsigned used, unsigned erased, uint64_t distance) {
    return first_row | uint64_t{used} << 40 | uint64_t{erased} << 48 | distance << 56;
  }
};
static_assert(sizeof(Bucket) == 64);

// A key has one bit in each word (the split block filter of Apache Parquet).
struct FilterBlock {
  uint32_t words[8];
};
static_assert(sizeof(FilterBlock) == 32);

struct ServingHeader {
  unsigned char magic[8];
  uint32_t version;       // magic, version and header_bytes have the same place in every version
  uint32_t header_bytes;  // sizeof(ServingHeader)
  uint32_t dim;           // 1 to 65,536
  uint32_t row_code;      // RowCode
  uint32_t row_type;      // PlaneType of the table, to which the rows of absent keys are rounded
  uint32_t is_layer;      // 0: a base
  char table_uuid[32];    // of the table whose rows these are
  uint64_t hash_seed;     // the same in all files of a table's version
  uint64_t first_sequence, last_sequence;  // the exports whose changes the file has; base: 0 to
  uint64_t step;                           // the step that the table had
  int64_t key_limit;                       // 0: any int64 is a key
  uint32_t initializer_kind;               // InitializerKind
  float initializer_a;
  float initializer_b;
  uint32_t reserved0;  // 0
  uint64_t initializer_seed;
  uint64_t initializer_salt;
  uint64_t n_keys;     // with erased ones
  uint64_t n_rows;     // n_keys without erased ones
  uint64_t row_bytes;  // CodedBytes()
  uint64_t homes;      // hashes lead to buckets 0 to homes - 1
  uint64_t n_buckets;  // homes, and those for the guests of the last ones
  uint64_t filter_at, filter_blocks;
  uint64_t cover_at, cover_blocks;
  // The cover has the keys of this layer, and of those older ones whose first_sequence is at least
  // this number when the layer was written.
  uint64_t cover_from;
  uint64_t rows_at;
  uint64_t crcs_at;
  uint64_t file_bytes;
  // The errors of the row code: CodeError.
  double error_sum;
  double error_max;
  uint64_t error_rows;
  uint64_t error_over;
  uint32_t reserved1;  // 0
  uint32_t crcs_crc;   // of the section of checksums
  uint32_t reserved2;  // 0
  uint32_t crc;        // of all bytes before it
};
static_assert(std::is_trivially_copyable_v<ServingHeader>);
static_assert(offsetof(ServingHeader, table_uuid) == 32);
static_assert(offsetof(ServingHeader, key_limit) == 96);
static_assert(offsetof(ServingHeader, n_keys) == 136);
static_assert(offsetof(ServingHeader, filter_at) == 176);
static_assert(offsetof(ServingHeader, rows_at) == 216);
static_assert(offsetof(ServingHeader, error_sum) == 240);
static_assert(offsetof(ServingHeader, crc) == 284);
static_assert(sizeof(ServingHeader) == 288);

inline uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// Maps a hash to 0 .. n - 1, ascending with the hash.
inline uint64_t PlaceOf(uint64_t hash, uint64_t n) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * n) >> 64);
}

// Returns the number of home buckets for n keys, and that of all buckets.
inline uint64_t HomesFor(uint64_t n_keys) {
  return static_cast<uint64_t>(static_cast<double>(n_keys) / (kBucketLoad * Bucket::kKeys)) + 1;
}
inline uint64_t BucketsFor(uint64_t homes) {
  return homes + std::min<uint64_t>(homes, Bucket::kMaxDistance);
}
inline uint64_t FilterBlocksFor(uint64_t n_keys) {
  return n_keys * kFilterBitsPerKey / (8 * sizeof(FilterBlock)) + 1;
}

// A section of a file: bytes [at, end). Its blocks begin at multiples of kServingBlock of the file,
// except the first, which begins with the section.
struct Section {
  uint64_t at = 0, end = 0;

  uint64_t blocks() const {
    return end == at ? 0 : RoundUp(end, kServingBlock) / kServingBlock - at / kServingBlock;
  }
  Section block(uint64_t number) const {
    const uint64_t first = (at / kServingBlock + number) * kServingBlock;
    return {std::max(at, first), std::min(end, first + kServingBlock)};
  }
};
inline uint32_t BlockCrc(const char* data, uint64_t n) {
  return Crc32cOfParts(0, data, static_cast<size_t>(n));
}

// The sections of a file, in their order. `rows` and `crcs` depend on n_rows.
struct ServingSections {
  Section index, filter, cover, rows, crcs;

  uint64_t blocks() const {
    return index.blocks() + filter.blocks() + cover.blocks() + rows.blocks();
  }
};
// Computes the sections of a file from the counts in its header.
inline ServingSections SectionsOf(const ServingHeader& header) {
  ServingSections sections;
  const auto after = [](const Section& before, uint64_t align, uint64_t bytes) {
    const uint64_t at = RoundUp(before.end, align);
    return Section{at, at + bytes};
  };
  sections.index = {kServingPage, kServingPage + header.n_buckets * sizeof(Bucket)};
  sections.filter = after(sections.index, kServingPage, header.filter_blocks * sizeof(FilterBlock));
  sections.cover = after(sections.filter, kServingPage, header.cover_blocks * sizeof(FilterBlock));
  // The place of the rows depends on the number of keys, which is known before that of the rows.
  const bool huge = header.homes * Bucket::kKeys * header.row_bytes >= kHugeRows;
  sections.rows =
      after(sections.cover, huge ? kServingPiece : kServingPage, header.n_rows * header.row_bytes);
  sections.crcs = after(sections.rows, 8, sections.blocks() * sizeof(uint32_t));
  return sections;
}

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_SERVING_LAYOUT_H_
