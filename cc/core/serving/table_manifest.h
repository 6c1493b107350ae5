// TableManifest: the list of a table's files in a version. It is a small text file, an asset of the
// SavedModel:
//
//   tf_sparse_ps serving table 1
//   table t0000-words
//   step 120
//   file tables/t0000-words/layer-2-2-5f0c.serving 31744 1a2b3c4d
//   file tables/t0000-words/base-1-77aa.serving 9920512 99887766
//   crc32c 5e6f7a8b
//
// Each file has its path in the version's folder, its bytes and the checksum of its header, newest
// first. The last line has the checksum of all bytes before it.
#ifndef TFSPS_CORE_SERVING_TABLE_MANIFEST_H_
#define TFSPS_CORE_SERVING_TABLE_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tsps {

struct ManifestFile {
  std::string path;
  uint64_t bytes = 0;
  uint32_t header_crc = 0;
};

struct TableManifest {
  std::string table;
  uint64_t step = 0;
  std::vector<ManifestFile> files;
};

// Returns whether a file begins as a manifest.
bool IsManifest(const std::string& content);
std::string EncodeManifest(const TableManifest& manifest);
// DataLoss, naming `path`: the content is damaged, newer, or no manifest.
Result<TableManifest> DecodeManifest(const std::string& content, const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_TABLE_MANIFEST_H_
