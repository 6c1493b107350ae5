#include <algorithm>
#include <cstring>

#include "core/wire/bit_blocks.h"
#include "core/wire/wire.h"
#include "core/wire/wire_layout.h"

namespace tsps {
namespace {

// Floats widened by a thread at once.
constexpr size_t kGrain = 1 << 14;

template <typename... Reason>
Status Damaged(const Reason&... reason) {
  return Error(Code::kDataLoss, "damaged gradient buffer: ", reason...);
}

// Checks the header, and that the entries of the tables fit into the buffer.
Status CheckHeader(const WireHeader& header, const uint8_t* data, size_t size) {
  if (std::memcmp(header.magic, kWireMagic, sizeof(header.magic)) != 0) {
    return Error(Code::kDataLoss,
                 "foreign gradient buffer: it does not begin with the magic bytes of one");
  }
  if (header.rows_begin > size) {
    return Error(Code::kDataLoss, "truncated or damaged gradient buffer: it has ", size,
                 " bytes, and its rows begin at ", header.rows_begin);
  }
  if (header.rows_begin < sizeof(header)) {
    return Damaged("its rows begin at ", header.rows_begin, ", inside of the header");
  }
  // Checked before the version, so that a damaged version number is not reported as a newer format.
  const uint32_t crc = WireCrc(data, header.rows_begin);
  if (crc != header.crc) {
    return Damaged("its checksum is ", header.crc, ", expected ", crc);
  }
  if (header.version > kWireVersion) {
    return Error(Code::kDataLoss, "newer gradient buffer: it has format version ", header.version,
                 ", and this process reads versions up to ", kWireVersion,
                 ". Nothing was merged. Install the same version of tf_sparse_ps on all nodes");
  }
  if (header.version < 1) return Damaged("it has format version 0");
  if (header.type > static_cast<uint32_t>(WireType::kFloat16)) {
    return Damaged("unknown wire type ", header.type);
  }
  if (header.bytes > size) {
    return Error(Code::kDataLoss, "truncated gradient buffer: it has ", size, " bytes, expected ",
                 header.bytes);
  }
  if (header.n_tables > (header.rows_begin - sizeof(header)) / sizeof(WireTable)) {
    return Damaged("the entries of ", header.n_tables, " tables do not fit before byte ",
                   header.rows_begin);
  }
  return Status();
}

// Moves `code` past n coded numbers, whose length must be the one in the table's entry.
Status SkipCode(const char* what, size_t table, size_t n, int max_width, uint64_t expected_bytes,
                const uint8_t** code, const uint8_t* end) {
  const Result<size_t> bytes =
      BitBlocksBytes(*code, static_cast<size_t>(end - *code), n, max_width);
  if (!bytes.ok()) return Damaged(what, " of table ", table, ": ", bytes.status().message());
  if (*bytes != expected_bytes) {
    return Damaged(what, " of table ", table, " have ", *bytes, " bytes, but its entry has ",
                   expected_bytes);
  }
  *code += *bytes;
  return Status();
}

}  // namespace

Result<WireReader> WireReader::Open(const uint8_t* data, size_t size) {
  WireHeader header;
  if (size < sizeof(header)) {
    return Error(Code::kDataLoss, "truncated gradient buffer: it has ", size,
                 " bytes, and the header alone needs ", sizeof(header));
  }
  std::memcpy(&header, data, sizeof(header));
  TSPS_RETURN_IF_ERROR(CheckHeader(header, data, size));

  WireReader reader;
  reader.type_ = static_cast<WireType>(header.type);
  reader.bytes_ = header.bytes;
  reader.tables_.resize(header.n_tables);
  const uint8_t* code = data + sizeof(header) + header.n_tables * sizeof(WireTable);
  const uint8_t* const code_end = data + header.rows_begin;
  uint64_t rows_end = header.rows_begin;
  for (size_t t = 0; t < header.n_tables; ++t) {
    WireTable entry;
    std::memcpy(&entry, data + sizeof(header) + t * sizeof(entry), sizeof(entry));
    if (entry.n > kMaxWireRows || entry.dim > kMaxWireDim) {
      return Damaged("table ", t, " has ", entry.n, " rows of ", entry.dim,
                     " floats; expected at most ", kMaxWireRows, " of up to ", kMaxWireDim);
    }
    Table& table = reader.tables_[t];
    table.n = entry.n;
    table.dim = entry.dim;
    table.first_key = entry.first_key;
    table.keys = code;
    const size_t differences = table.n == 0 ? 0 : table.n - 1;
    TSPS_RETURN_IF_ERROR(
        SkipCode("keys", t, differences, kKeyBits, entry.key_bytes, &code, code_end));
    if (entry.count_bytes != 0) {
      table.counts = code;
      TSPS_RETURN_IF_ERROR(
          SkipCode("counts", t, table.n, kCountBits, entry.count_bytes, &code, code_end));
    }
    const uint64_t rows_begin = WireAligned(rows_end);
    rows_end = rows_begin + table.n * table.dim * WireTypeBytes(reader.type_);
    if (rows_end > header.bytes) {
      return Damaged("rows of table ", t, " end at byte ", rows_end, " of ", header.bytes);
    }
    table.rows = data + rows_begin;
  }
  const auto codes_end = static_cast<uint64_t>(code - data);
  if (WireAligned(codes_end) != header.rows_begin) {
    return Damaged("keys and counts end at byte ", codes_end, ", and rows begin at ",
                   header.rows_begin);
  }
  if (rows_end != header.bytes) {
    return Damaged("rows end at byte ", rows_end, " of ", header.bytes);
  }
  return reader;
}

Status WireReader::Keys(size_t table, int64_t* keys) const {
  const Table& from = tables_[table];
  if (from.n == 0) return Status();
  int64_t key = from.first_key;
  *keys++ = key;
  bool ascending = true;
  uint64_t differences[kBitBlock];
  BitBlockReader reader(from.keys, from.n - 1);
  while (const size_t n = reader.Next(differences)) {
    for (size_t i = 0; i < n; ++i) {
      const int64_t next = static_cast<int64_t>(static_cast<uint64_t>(key) + differences[i] + 1);
      ascending &= next > key;
      keys[i] = key = next;
    }
    keys += n;
  }
  if (!ascending) return Damaged("keys of table ", table, " do not ascend");
  return Status();
}

Status WireReader::Counts(size_t table, int32_t* counts) const {
  const Table& from = tables_[table];
  if (from.counts == nullptr) {
    std::fill(counts, counts + from.n, 1);
    return Status();
  }
  bool fit = true;
  uint64_t numbers[kBitBlock];
  BitBlockReader reader(from.counts, from.n);
  while (const size_t n = reader.Next(numbers)) {
    for (size_t i = 0; i < n; ++i) {
      fit &= numbers[i] < INT32_MAX;
      counts[i] = static_cast<int32_t>(std::min<uint64_t>(numbers[i] + 1, INT32_MAX));
    }
    counts += n;
  }
  if (!fit) return Damaged("a count of table ", table, " is 2^31");
  return Status();
}

const float* WireReader::RowsInPlace(size_t table) const {
  const uint8_t* const rows = tables_[table].rows;
  const bool aligned = reinterpret_cast<uintptr_t>(rows) % alignof(float) == 0;
  return type_ == WireType::kFloat32 && aligned ? reinterpret_cast<const float*>(rows) : nullptr;
}

void WireReader::Rows(size_t table, float* rows, Executor& executor) const {
  const Table& from = tables_[table];
  executor.ParallelFor(from.n * from.dim, kGrain, [&](size_t begin, size_t end) {
    WidenFloats(type_, from.rows + begin * WireTypeBytes(type_), end - begin, rows + begin);
  });
}

}  // namespace tsps
