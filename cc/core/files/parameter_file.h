// The sparse-parameter file: a table's rows, and optionally its slots and metadata, in one portable
// little-endian file.
//
//   header   ParameterFileHeader: 128 bytes, fixed width, with its own CRC-32C
//   planes   ParameterFilePlane: 64 bytes for each plane in the file
//   block    4,096 records, the last block fewer; uint32 CRC-32C of them; 4 zero bytes
//   block    ...
//
//   record   int64 key, the bytes of the row in each plane, zeros up to a multiple of 8
//
// The planes are the embedding, then the optimizer's slots, then metadata. Files of version 1 can
// be read, too; they have no list of planes, and all slots are as wide as the embedding. No two
// records have the same key. The file ends with the last block; a shorter or longer file is
// refused. docs/format.md is the public description of the format.
#ifndef TFSPS_CORE_FILES_PARAMETER_FILE_H_
#define TFSPS_CORE_FILES_PARAMETER_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/table/initializer.h"
#include "core/table/planes.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

// The contents of a header.
struct ParameterFileInfo {
  uint32_t dim = 0;
  uint64_t n_rows = 0;
  int64_t key_limit = 0;      // bounded table: keys are 0 .. key_limit - 1; 0: any int64 is a key
  OptimizerConfig optimizer;  // kNone: the file has no slots
  OptimizerUse trained_by;    // the optimizer that made the slots; zeros: not known
  InitializerConfig initializer;
  uint64_t step = 0;                         // the group's step when the file was written
  std::vector<MetadataPlane> metadata;       // the metadata planes in the file
  PlaneType row_type = PlaneType::kFloat32;  // IsRowType()
  Shard shard;                               // the part of the table that the rows belong to
};

// Returns the planes in a file, in the order of its records.
std::vector<Plane> PlanesOf(const ParameterFileInfo& info);

// Checksums of a file that was written.
struct ParameterFileChecksums {
  uint32_t file = 0;    // CRC-32 of its bytes
  uint32_t blocks = 0;  // CRC-32 of the CRC-32C of its blocks, one after the other
};

// Writes a file under a temporary name and renames it when it is complete, after an fsync of file
// and folder. So a killed export leaves no partial file under the final name. Only one writer may
// write a path at a time (partial_file.h). Not thread-safe.
class ParameterFileWriter {
 public:
  // Begins a file. Replaces a regular file at `path`, but refuses a symbolic link. `counted`:
  // n_rows need not be known; Finish writes the header again with the number of rows. Aborted:
  // another writer is writing this path.
  static Result<std::unique_ptr<ParameterFileWriter>> Create(const std::string& path,
                                                             const ParameterFileInfo& info,
                                                             bool counted = false);
  // Removes the temporary file unless Finish succeeded.
  ~ParameterFileWriter();

  // Appends n rows. values[p] has n rows of plane p of PlanesOf(info), one after another. After a
  // failed write, all following calls return the same error.
  Status Append(const int64_t* keys, const void* const* values, size_t n);
  // Completes the file. FailedPrecondition: the number of rows is not the announced one.
  Status Finish();
  // Returns the checksums of the file, after Finish.
  const ParameterFileChecksums& checksums() const;

 private:
  ParameterFileWriter();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a file with pread. With a mapping, a file that is truncated meanwhile would end the process
// with SIGBUS. Thread-safe after Open.
class ParameterFileReader {
 public:
  // Opens a file and checks its magic bytes, version, header, list of planes and length. The error
  // says whether it is missing, truncated, foreign, newer or damaged, and names the path.
  static Result<std::unique_ptr<ParameterFileReader>> Open(const std::string& path);
  ~ParameterFileReader();

  // The contents of the header.
  const ParameterFileInfo& info() const;
  size_t n_blocks() const;
  size_t rows_in_block(size_t block) const;
  // Reads a block of m = rows_in_block(block) rows and verifies its checksum. Copies m keys to
  // `keys`, and m rows of plane p of PlanesOf(info()) to values[p], unless that is null. DataLoss,
  // naming the block: it is damaged.
  Status ReadBlock(size_t block, int64_t* keys, void* const* values) const;
  // Returns the checksum that the file has for a block. Reads nothing else of the block.
  Result<uint32_t> BlockChecksum(size_t block) const;

 private:
  ParameterFileReader();
  Status CheckBlock(size_t block) const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_FILES_PARAMETER_FILE_H_
