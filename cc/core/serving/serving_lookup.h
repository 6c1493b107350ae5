// The inner loop of lookups in serving files.
#ifndef TFSPS_CORE_SERVING_SERVING_LOOKUP_H_
#define TFSPS_CORE_SERVING_SERVING_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/serving/row_code.h"
#include "core/serving/serving_file.h"
#include "core/serving/serving_layout.h"

namespace tsps {

// What lookups need of a file.
struct FileIndex {
  const Bucket* buckets = nullptr;
  uint64_t homes = 0;
  uint64_t last_bucket = 0;
  const char* rows = nullptr;
  uint64_t n_rows = 0;
  const FilterBlock* filter = nullptr;  // null: a base
  uint64_t filter_blocks = 0;
};

// The filter of one or several adjacent layers.
struct LayerGroup {
  const FilterBlock* filter = nullptr;
  uint64_t filter_blocks = 0;
  size_t begin = 0, end = 0;  // the layers
};

// The files of a table, newest first.
struct FileStack {
  explicit FileStack(const std::vector<std::shared_ptr<const ServingFile>>& files);

  RowCode code;
  size_t dim;
  size_t row_bytes;
  uint64_t hash_seed;
  FileIndex base;
  std::vector<FileIndex> layers;
  std::vector<LayerGroup> groups;
};

constexpr size_t kLookupKeys = 4096;  // the most keys of a call of FindRows and CopyFound

// Results of a lookup of up to kLookupKeys keys.
struct LookupResult {
  // The positions of keys without a row.
  uint32_t absent[kLookupKeys];
  size_t n_absent = 0;
  // The position of a key for which an index has a row number outside of its file, else -1.
  int64_t astray = -1;
};

// Writes the rows of keys that are present to `rows`, float[n, dim]. Writes nothing useful for
// absent keys. `stream`: bypass the caches; requires CanStream(rows, dim * sizeof(float)).
// `rows` may be null, to find only which keys are absent.
void LookUpRange(const FileStack& stack, const int64_t* keys, size_t n, bool stream, float* rows,
                 LookupResult* result);

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_SERVING_LOOKUP_H_
