// Whole reads and writes at offsets of a file, and the folder of a path.
#ifndef TFSPS_CORE_OS_FILE_IO_H_
#define TFSPS_CORE_OS_FILE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

// Reads n bytes at an offset of a file. Returns their number, which is smaller only at the file's
// end. `name` is for error messages.
Result<size_t> ReadAt(int fd, const std::string& name, void* data, size_t n, uint64_t at);

// Writes n bytes at an offset of a file. `name` is for error messages.
Status WriteAt(int fd, const std::string& name, const void* data, size_t n, uint64_t at);

// Returns the folder that a path names its last component in.
std::string FolderOf(const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_FILE_IO_H_
