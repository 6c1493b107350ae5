// The sparse-parameter file: a table's rows (and, if wanted, slots and metadata) in one portable
// little-endian file.
//
//   header   ParameterFileHeader: 128 bytes, fixed width, with its own CRC-32C
//   planes   ParameterFilePlane: 64 bytes for each plane that the file carries
//   block    4,096 records, the last block fewer; uint32 CRC-32C of them; 4 zero bytes
//   block    ...
//
//   record   int64 key, of each plane the bytes of one row, zeros up to a multiple of 8
//
// The planes are the embedding, then the optimizer's slots, then metadata. A file of version 1,
// which is read, too, has no list of planes: they are the embedding and slots as wide as it.
// No two records have the same key. The file ends with the last block: a shorter or longer one is
// refused. docs/format.md is the format's public description.
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

struct ParameterFileInfo {
  uint32_t dim = 0;
  uint64_t n_rows = 0;
  int64_t key_limit = 0;      // bounded table: keys are 0 .. key_limit - 1; 0: any int64 is a key
  OptimizerConfig optimizer;  // kNone: the file carries no slots
  OptimizerUse trained_by;    // whose slots they are; zeros where that is not known
  InitializerConfig initializer;
  uint64_t step = 0;                         // of the group when the file was written
  std::vector<MetadataPlane> metadata;       // planes of the table's own that the file carries
  PlaneType row_type = PlaneType::kFloat32;  // IsRowType()
  Shard shard;                               // whose rows these are
};

// The planes that a file carries, in the order of its records.
std::vector<Plane> PlanesOf(const ParameterFileInfo& info);

// Of a file that has been written.
struct ParameterFileChecksums {
  uint32_t file = 0;    // CRC-32 of its bytes
  uint32_t blocks = 0;  // CRC-32 of the CRC-32C of its blocks, one after the other
};

// Writes a file beside its final name and renames it when complete (fsync of file and folder), so
// that a killed export leaves no half file under the name. One writer at a time for a path
// (partial_file.h). Not thread-safe.
class ParameterFileWriter {
 public:
  // `counted`: n_rows need not be known; the header is written again when the rows have been.
  // Refuses to follow a symlink at `path`; replaces a regular file. kAborted: another writer is at
  // it.
  static Result<std::unique_ptr<ParameterFileWriter>> Create(const std::string& path,
                                                             const ParameterFileInfo& info,
                                                             bool counted = false);
  ~ParameterFileWriter();  // removes the temporary file unless Finish succeeded

  // values[p]: n rows of the plane p of PlanesOf(info), one after the other. An error in writing is
  // returned again by all that follows.
  Status Append(const int64_t* keys, const void* const* values, size_t n);
  // Refuses if fewer or more rows were appended than announced.
  Status Finish();
  // After Finish.
  const ParameterFileChecksums& checksums() const;

 private:
  ParameterFileWriter();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a file with pread: through a mapping, a file truncated meanwhile would end the process with
// SIGBUS. Thread-safe after Open.
class ParameterFileReader {
 public:
  // Checks magic, version, header, list of planes and length; says missing, truncated, foreign,
  // newer or damaged, and the path.
  static Result<std::unique_ptr<ParameterFileReader>> Open(const std::string& path);
  ~ParameterFileReader();

  const ParameterFileInfo& info() const;
  size_t n_blocks() const;
  size_t rows_in_block(size_t block) const;
  // Verifies the block's checksum and copies it out: keys int64[m], and m rows of the plane p of
  // PlanesOf(info()) to values[p], which may be null: skipped. m = rows_in_block(block). A damaged
  // block is DataLoss that names it.
  Status ReadBlock(size_t block, int64_t* keys, void* const* values) const;
  // The checksum that the file has of a block; reads nothing else of it.
  Result<uint32_t> BlockChecksum(size_t block) const;

 private:
  ParameterFileReader();
  Status CheckBlock(size_t block) const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_FILES_PARAMETER_FILE_H_
