// Packs sparse gradients. Measured with 80k keys of hashed ids, counts of up to 4 ranks, and rows
// of 64 floats: milliseconds on one thread (AMD EPYC, best of 20; `python tools/native.py bench
// wire 1 343000`), and bytes per row.
//
//              sort and code   write   read keys, counts   read rows   bytes
//   float32         1.0         1.2           0.3             0.65     262.4
//   bfloat16        1.0         1.2           0.3             0.47     134.4
//   float16         1.0         2.3           0.3             0.90     134.4
//
// 6.4 of the bytes are not the row. Only the rows are shared among threads: two threads write in
// 0.8, 0.7 and 1.2 ms. Without prefetching, one thread writes in 3.0, 5.8 and 13 ms.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/base/prefetch.h"
#include "core/gradients/sort_keys.h"
#include "core/wire/bit_blocks.h"
#include "core/wire/wire.h"
#include "core/wire/wire_layout.h"

namespace tsps {
namespace {

// The distance of prefetches: the rows lie in any order.
constexpr size_t kAhead = 16;
// The floats that a thread takes at once.
constexpr size_t kPieceFloats = 1 << 14;
// With fewer keys in all, one thread codes the tables sooner than another thread wakes up.
constexpr size_t kWorthSharing = 1024;
constexpr size_t kUnpaddedSplit = 16 << 10;

// A coded table whose place in the buffer is not known yet.
struct CodedTable {
  WireTable entry = {};
  std::vector<uint8_t> keys, counts;
  std::vector<uint32_t> order;
};

Status CodeTable(size_t table, const WireSet& set, CodedTable* coded) {
  if (set.n > kMaxWireRows) {
    return Error(Code::kInvalidArgument, "table ", table, " must have at most ", kMaxWireRows,
                 " gradients. Received: ", set.n);
  }
  if (set.dim > kMaxWireDim) {
    return Error(Code::kInvalidArgument, "dim of table ", table, " must be in [0, ", kMaxWireDim,
                 "]. Received: ", set.dim);
  }
  const size_t n = set.n;
  coded->entry.n = static_cast<uint32_t>(n);
  coded->entry.dim = static_cast<uint32_t>(set.dim);
  if (n == 0) return Status();
  const std::unique_ptr<KeyPosition[]> sorted = SortKeys(set.keys, n);
  coded->entry.first_key = sorted[0].key;
  coded->order.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t position = sorted[i].position;
    coded->order[i] = set.places == nullptr ? position : set.places[position];
  }

  std::vector<uint64_t> numbers(n);
  for (size_t i = 1; i < n; ++i) {
    if (sorted[i].key == sorted[i - 1].key) {
      return Error(Code::kInvalidArgument, "keys of table ", table,
                   " must be unique. Received: ", sorted[i].key, " at ", sorted[i - 1].position,
                   " and ", sorted[i].position);
    }
    numbers[i - 1] =
        static_cast<uint64_t>(sorted[i].key) - static_cast<uint64_t>(sorted[i - 1].key) - 1;
  }
  AppendBitBlocks(numbers.data(), n - 1, &coded->keys);
  coded->entry.key_bytes = coded->keys.size();

  if (set.counts == nullptr) return Status();
  uint64_t all = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t count = set.counts[sorted[i].position];
    if (count < 1) {
      return Error(Code::kInvalidArgument, "count of key ", sorted[i].key, " of table ", table,
                   " must be a number of ranks, 1 or more. Received: ", count);
    }
    numbers[i] = static_cast<uint64_t>(count - 1);
    all |= numbers[i];
  }
  if (all != 0) AppendBitBlocks(numbers.data(), n, &coded->counts);
  coded->entry.count_bytes = coded->counts.size();
  return Status();
}

void Append(const void* data, size_t bytes, std::vector<uint8_t>* out) {
  const uint8_t* const begin = static_cast<const uint8_t*>(data);
  out->insert(out->end(), begin, begin + bytes);
}

}  // namespace

Result<WirePacker> WirePacker::Create(const std::vector<WireSet>& sets, WireType type,
                                      Executor& executor) {
  size_t n_keys = 0;
  for (const WireSet& set : sets) n_keys += set.n;
  std::vector<CodedTable> coded(sets.size());
  std::vector<Status> statuses(sets.size());
  const size_t grain = n_keys < kWorthSharing ? sets.size() : 1;
  executor.ParallelFor(sets.size(), grain, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) statuses[t] = CodeTable(t, sets[t], &coded[t]);
  });
  TSPS_RETURN_IF_ERROR(FirstError(statuses));

  WirePacker packer;
  packer.type_ = type;
  WireHeader header = {};
  size_t head_bytes = sizeof(header) + sets.size() * sizeof(WireTable);
  for (const CodedTable& table : coded) head_bytes += table.keys.size() + table.counts.size();
  header.rows_begin = WireAligned(head_bytes);
  uint64_t end = header.rows_begin;
  for (size_t t = 0; t < sets.size(); ++t) {
    const uint64_t begin = WireAligned(end);
    packer.tables_.push_back({sets[t].rows, sets[t].dim, std::move(coded[t].order), begin});
    end = begin + sets[t].n * sets[t].dim * WireTypeBytes(type);
  }
  packer.bytes_ = end;

  std::memcpy(header.magic, kWireMagic, sizeof(header.magic));
  header.version = kWireVersion;
  header.type = static_cast<uint32_t>(type);
  header.bytes = end;
  header.n_tables = static_cast<uint32_t>(sets.size());
  packer.head_.reserve(header.rows_begin);
  Append(&header, sizeof(header), &packer.head_);
  for (const CodedTable& table : coded) Append(&table.entry, sizeof(WireTable), &packer.head_);
  for (const CodedTable& table : coded) {
    Append(table.keys.data(), table.keys.size(), &packer.head_);
    Append(table.counts.data(), table.counts.size(), &packer.head_);
  }
  packer.head_.resize(header.rows_begin);
  const uint32_t crc = WireCrc(packer.head_.data(), packer.head_.size());
  std::memcpy(packer.head_.data() + offsetof(WireHeader, crc), &crc, sizeof(crc));
  return packer;
}

void WirePacker::Write(uint8_t* out, size_t size, Executor& executor) const {
  assert(size >= bytes_);
  std::memcpy(out, head_.data(), head_.size());
  // One loop covers the rows of all tables, because waking threads takes longer than a small table.
  struct Piece {
    const Table* table;
    size_t begin, end;
  };
  std::vector<Piece> pieces;
  size_t end = head_.size(), floats = 0;
  for (const Table& table : tables_) {
    std::memset(out + end, 0, table.rows_begin - end);
    if (table.dim == 0) continue;
    const size_t n = table.order.size(), step = std::max<size_t>(1, kPieceFloats / table.dim);
    for (size_t i = 0; i < n; i += step) pieces.push_back({&table, i, std::min(n, i + step)});
    end = table.rows_begin + n * table.dim * WireTypeBytes(type_);
    floats += n * table.dim;
  }
  std::memset(out + end, 0, size - end);
  // A thread takes several pieces of small tables at once.
  const size_t grain = 1 + pieces.size() / (1 + floats / kPieceFloats);
  executor.ParallelFor(pieces.size(), grain, [&](size_t first, size_t last) {
    for (size_t p = first; p < last; ++p) {
      const Table& table = *pieces[p].table;
      const size_t dim = table.dim, n = table.order.size();
      uint8_t* row = out + table.rows_begin + pieces[p].begin * dim * WireTypeBytes(type_);
      for (size_t i = pieces[p].begin; i < pieces[p].end; ++i) {
        if (i + kAhead < n)
          Prefetch(table.rows + table.order[i + kAhead] * dim, dim * sizeof(float));
        NarrowFloats(type_, table.rows + table.order[i] * dim, dim, row);
        row += dim * WireTypeBytes(type_);
      }
    }
  });
}

size_t PaddedBytes(size_t bytes, size_t splits) {
  if (bytes <= 256) return 256;
  if (splits > 1 && bytes >= kUnpaddedSplit) return WireAligned(bytes);
  const int log2 = 63 - __builtin_clzll(bytes - 1);
  const size_t step = std::max<size_t>(64, size_t{1} << (log2 - 4));
  return (bytes + step - 1) / step * step;
}

}  // namespace tsps
