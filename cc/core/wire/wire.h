// The wire format: sparse gradients of all tables in one buffer, to be sent to other nodes.
//
// A rank packs what it sends: a range of its node's merged gradients, or, in a flat ring, its own.
// An allgather gives every receiver the buffers of all senders, an all-to-all the one that is for
// it; it reads them, its own included, in their order, and merges. Whoever reads the same bytes
// gets the same floats, so all nodes merge the same.
//
//   header, an entry per table     fixed width
//   keys and counts of each table  coded: sorted keys by their differences, counts less 1
//   rows of each table             in the order of its keys, float32, bfloat16 or float16
//
// A CRC-32C covers everything before the rows. The rows have none, because they are nearly all of
// the bytes and the transport has its own checksums: a damaged row is not noticed. wire_layout.h
// draws the bytes; docs/format.md is the format's public description.
#ifndef TFSPS_CORE_WIRE_WIRE_H_
#define TFSPS_CORE_WIRE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/wire/wire_type.h"

namespace tsps {

// A table's gradients.
struct WireSet {
  const int64_t* keys;               // int64[n], unique, in any order
  const int32_t* counts;             // int32[n], number of ranks, at least 1; null: all 1
  const float* rows;                 // float[n, dim]
  size_t n;                          // at most 2^31 - 1; 0: the sender has none of the table
  size_t dim;                        // 0 to 65,536; 0: keys alone
  const uint32_t* places = nullptr;  // in `rows`, of each key's row; null: the key's own
};

// Thread-safe.
class WirePacker {
 public:
  // Sorts and codes keys and counts, which may go then; rows must outlive the packer. Refuses sizes
  // out of range, keys that repeat and counts below 1, and names the table and the key.
  static Result<WirePacker> Create(const std::vector<WireSet>& sets, WireType type,
                                   Executor& executor);

  // Length of the buffer.
  size_t bytes() const { return bytes_; }
  // Writes the buffer, and zeros from there up to `size`, which is at least bytes().
  void Write(uint8_t* out, size_t size, Executor& executor) const;

 private:
  struct Table {
    const float* rows = nullptr;
    size_t dim = 0;
    std::vector<uint32_t> order;  // rows[order[i]] is the i-th key's
    size_t rows_begin = 0;        // in the buffer
  };

  WireType type_ = WireType::kFloat32;
  std::vector<uint8_t> head_;  // the buffer up to the first row
  std::vector<Table> tables_;
  size_t bytes_ = 0;
};

// Thread-safe.
class WireReader {
 public:
  // `data` may have any alignment and must outlive the reader. What follows the buffer's own end,
  // which it knows, is padding. Checks everything that can be wrong but what Keys and Counts say,
  // so that nothing is read outside of [data, data + size), and no table has more rows than there
  // are bytes for. DataLoss: truncated, foreign, newer or damaged; the message says which.
  static Result<WireReader> Open(const uint8_t* data, size_t size);

  WireType type() const { return type_; }
  // Length of the buffer without padding.
  size_t bytes() const { return bytes_; }
  size_t n_tables() const { return tables_.size(); }
  size_t n(size_t table) const { return tables_[table].n; }
  size_t dim(size_t table) const { return tables_[table].dim; }

  // int64[n], ascending. DataLoss if they do not ascend.
  Status Keys(size_t table, int64_t* keys) const;
  // int32[n], at least 1. DataLoss if one does not fit.
  Status Counts(size_t table, int32_t* counts) const;
  // float[n, dim], in the order of keys.
  void Rows(size_t table, float* rows, Executor& executor) const;
  // The same where they lie; null when they must be converted or are not aligned.
  const float* RowsInPlace(size_t table) const;

 private:
  struct Table {
    size_t n = 0, dim = 0;
    int64_t first_key = 0;
    const uint8_t* keys = nullptr;    // coded
    const uint8_t* counts = nullptr;  // coded; null: all 1
    const uint8_t* rows = nullptr;
  };

  WireType type_ = WireType::kFloat32;
  size_t bytes_ = 0;
  std::vector<Table> tables_;
};

// The size to give a buffer of so many bytes (at most 2^62), so that collectives meet few sizes:
// Horovod's response cache knows tensors by their shapes, and misses whenever one is new.
//
// Always a multiple of 64. From 1,024 bytes on there are 16 sizes from one power of two to the
// next, and less than bytes / 16 is added; below, sizes are 256, 320, 384, ..., so less than 64 is,
// or what is missing to 256.
//
// `splits`: buffers of which the tensor consists, one for each receiver of an all-to-all. Few sizes
// of several would still be many sums of them, so from 16 KiB on the size is the next multiple of
// 64; smaller ones are as above, and not many, in steps that take what messages take.
size_t PaddedBytes(size_t bytes, size_t splits = 1);

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_H_
