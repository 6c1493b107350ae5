// Tables in sparse-parameter files: a SavedModel contains them as assets, and lookups read them
// without a job.
#ifndef TFSPS_KERNELS_FILE_TABLES_H_
#define TFSPS_KERNELS_FILE_TABLES_H_

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "kernels/group_registry.h"

namespace tsps {

// Returns whether `path` is a regular file, and therefore not a table of a group.
bool IsParameterFile(const std::string& path);

// Loads the files into one group of this process, and returns its tables in the order of the files.
// After loading, the group has no name in the file system, and it is freed with the last handle.
// Another call with the same files returns the same group while a handle exists. Thread-safe.
Result<std::vector<TableHandle>> OpenParameterFiles(const std::vector<std::string>& paths);

}  // namespace tsps

#endif  // TFSPS_KERNELS_FILE_TABLES_H_
