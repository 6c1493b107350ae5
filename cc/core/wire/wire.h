// The wire format: sparse gradients of all tables in one buffer that travels between nodes.
//
// A rank packs the gradients that it sends: a range of its node's merged gradients, or, in a flat
// ring, its own gradients. An allgather gives every receiver the buffers of all senders; an
// all-to-all gives it the buffers that were packed for it. The receiver reads the buffers, its own
// included, in the order of the senders, and merges them. All nodes read the same bytes, so they
// get the same floats and the same sums.
//
//   header, an entry per table     fixed width
//   keys and counts of each table  coded: differences of sorted keys; counts less 1
//   rows of each table             in the order of its keys, float32, bfloat16 or float16
//
// A CRC-32C covers everything before the rows. The rows have no checksum, because they are nearly
// all of the bytes, and the transport has its own checksums: the reader does not detect a damaged
// row. wire_layout.h draws the bytes; docs/format.md describes the format for users.
#ifndef TFSPS_CORE_WIRE_WIRE_H_
#define TFSPS_CORE_WIRE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/wire/wire_type.h"

namespace tsps {

// The gradients of a table.
struct WireSet {
  const int64_t* keys;               // int64[n], unique, in any order
  const int32_t* counts;             // int32[n], numbers of ranks, at least 1; null: all 1
  const float* rows;                 // float[n, dim]
  size_t n;                          // at most 2^31 - 1; 0: the sender has no gradient of the table
  size_t dim;                        // 0 to 65,536; 0: the set has keys only
  const uint32_t* places = nullptr;  // each key's position in `rows`; null: the key's own position
};

// Thread-safe.
class WirePacker {
 public:
  // Sorts and codes keys and counts, which the packer does not need afterwards. The rows must
  // outlive it. InvalidArgument, naming the table and the key: a size is out of range, a key
  // repeats, or a count is below 1.
  static Result<WirePacker> Create(const std::vector<WireSet>& sets, WireType type,
                                   Executor& executor);

  // Returns the length of the buffer.
  size_t bytes() const { return bytes_; }
  // Writes the buffer, and zeros after it up to `size`, which is at least bytes().
  void Write(uint8_t* out, size_t size, Executor& executor) const;

 private:
  struct Table {
    const float* rows = nullptr;
    size_t dim = 0;
    std::vector<uint32_t> order;  // rows[order[i]] is the row of the i-th key
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
  // Opens a buffer. `data` may have any alignment and must outlive the reader. The header contains
  // the buffer's length; the bytes after it are padding. Checks everything except the values that
  // Keys and Counts return, so that no method reads outside of [data, data + size), and no table
  // has more rows than there are bytes for. DataLoss: the buffer is truncated, foreign, newer or
  // damaged; the message tells which.
  static Result<WireReader> Open(const uint8_t* data, size_t size);

  WireType type() const { return type_; }
  // Returns the length of the buffer without padding.
  size_t bytes() const { return bytes_; }
  size_t n_tables() const { return tables_.size(); }
  size_t n(size_t table) const { return tables_[table].n; }
  size_t dim(size_t table) const { return tables_[table].dim; }

  // Reads the keys, int64[n], ascending. DataLoss: they do not ascend.
  Status Keys(size_t table, int64_t* keys) const;
  // Reads the counts, int32[n], at least 1. DataLoss: a count does not fit into an int32.
  Status Counts(size_t table, int32_t* counts) const;
  // Reads the rows, float[n, dim], in the order of the keys.
  void Rows(size_t table, float* rows, Executor& executor) const;
  // Returns the rows in the buffer itself; null if they need conversion or are not aligned.
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

// Returns the padded size of a buffer of `bytes` bytes (at most 2^62). Padding makes collectives
// meet few different sizes: Horovod's response cache identifies tensors by their shapes, and misses
// at each new shape.
//
// The size is a multiple of 64. From 1,024 bytes on there are 16 sizes between one power of two and
// the next, so padding adds less than bytes / 16. Below, the sizes are 256, 320, 384, ..., 1,024.
//
// `splits` is the number of buffers that form one tensor, one for each receiver of an all-to-all.
// The sums of several padded sizes take many values however few the sizes are. Therefore buffers
// from 16 KiB on are padded to the next multiple of 64 only; smaller ones are padded as above.
size_t PaddedBytes(size_t bytes, size_t splits = 1);

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_H_
