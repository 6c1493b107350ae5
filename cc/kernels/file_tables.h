// Tables of older exports: their SavedModels have sparse-parameter files as assets, which each
// process loads into memory of its own. Newer ones are in served_tables.h.
#ifndef TFSPS_KERNELS_FILE_TABLES_H_
#define TFSPS_KERNELS_FILE_TABLES_H_

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "kernels/group_registry.h"

namespace tsps {

// Loads the files into one group of this process, and returns its tables in the order of the files.
// After loading, the group has no name in the file system, and it is freed with the last handle.
// Another call with the same files returns the same group while a handle exists. Thread-safe.
Result<std::vector<TableHandle>> OpenParameterFiles(const std::vector<std::string>& paths);

}  // namespace tsps

#endif  // TFSPS_KERNELS_FILE_TABLES_H_
