// Tables of served versions: a SavedModel names them by assets, and lookups read their files.
#ifndef TFSPS_KERNELS_SERVED_TABLES_H_
#define TFSPS_KERNELS_SERVED_TABLES_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "kernels/group_registry.h"

namespace tsps {

// What a path of a lookup leads to.
enum class TableSource {
  kGroup,          // a table of a job
  kServed,         // a serving file, or a manifest of several
  kParameterFile,  // a file of an older export
};
TableSource SourceOf(const std::string& path);

// Opens tables of a served version, and returns them in the order of the paths. Tables that are
// open, and files that other versions share, are not mapped again. Thread-safe.
Result<std::vector<TableHandle>> OpenServedTables(const std::vector<std::string>& paths);

}  // namespace tsps

#endif  // TFSPS_KERNELS_SERVED_TABLES_H_
