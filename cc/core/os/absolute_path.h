// The path under which a process knows a file, whatever its user wrote.
//
// This is std::filesystem's absolute(path).lexically_normal() without a slash at the end. The core
// and the kernels do not use std::filesystem, because libstdc++ has exported it only since GCC 9:
// wheels also run with older ones.
#ifndef TFSPS_CORE_OS_ABSOLUTE_PATH_H_
#define TFSPS_CORE_OS_ABSOLUTE_PATH_H_

#include <string>

namespace tsps {

// Returns the absolute path without ".", ".." and "//". The function does not resolve symbolic
// links. If the current directory no longer exists, a relative path is taken as one of "/".
std::string AbsolutePath(const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_ABSOLUTE_PATH_H_
