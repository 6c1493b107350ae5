// Tables that are sparse-parameter files: what a SavedModel carries as assets, read without a job.
#ifndef TFSPS_KERNELS_FILE_TABLES_H_
#define TFSPS_KERNELS_FILE_TABLES_H_

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "kernels/group_registry.h"

namespace tsps {

// Whether `path` is a regular file, and so no table of a group.
bool IsParameterFile(const std::string& path);

// Loads the files into one group of this process, which has no name in the file system once it is
// loaded, and goes when the last handle does. The tables have the files' order. The same files
// loaded again while they are held are the same group. Thread-safe.
Result<std::vector<TableHandle>> OpenParameterFiles(const std::vector<std::string>& paths);

}  // namespace tsps

#endif  // TFSPS_KERNELS_FILE_TABLES_H_
