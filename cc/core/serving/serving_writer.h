// Writes a serving file from a stream of keys and rows, in memory that does not depend on their
// number.
#ifndef TFSPS_CORE_SERVING_SERVING_WRITER_H_
#define TFSPS_CORE_SERVING_SERVING_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/serving/entry_source.h"
#include "core/serving/row_code.h"
#include "core/serving/serving_file.h"
#include "core/table/layout.h"

namespace tsps {

// What a file says of its table.
struct ServingInfo {
  uint32_t dim = 0;
  RowCode row_code = RowCode::kFloat32;
  PlaneType row_type = PlaneType::kFloat32;  // of the table
  std::string table_uuid;                    // 32 hexadecimal digits
  uint64_t hash_seed = 0;
  uint64_t first_sequence = 0, last_sequence = 0;
  uint64_t step = 0;
  int64_t key_limit = 0;
  InitializerConfig initializer;

  static ServingInfo Of(const ServingFile& file);
};

// Called with the number of keys that are written, from time to time. An error ends the writing.
using ServingProgress = std::function<Status(uint64_t keys)>;

// Writes a base: erased keys of the source are left out. The file appears under `path` when it is
// complete and on disk; it replaces a file that is there.
Status WriteBase(const std::string& path, const ServingInfo& info, EntrySource& source,
                 const ServingProgress& progress);

// Writes a layer. `older`: the layers under it, newest first. The layer gets a filter that also
// covers some of them, as long as the filter is small beside the layer.
Status WriteLayer(const std::string& path, const ServingInfo& info, EntrySource& source,
                  const std::vector<std::shared_ptr<const ServingFile>>& older,
                  const ServingProgress& progress);

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_SERVING_WRITER_H_
