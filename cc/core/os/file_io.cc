#include "core/os/file_io.h"

#include <unistd.h>

#include <cerrno>

namespace tsps {

Result<size_t> ReadAt(int fd, const std::string& name, void* data, size_t n, uint64_t at) {
  char* const to = static_cast<char*>(data);
  size_t done = 0;
  while (done < n) {
    const ssize_t n_read = pread(fd, to + done, n - done, static_cast<off_t>(at + done));
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read < 0) return ErrnoError("cannot read", name);
    if (n_read == 0) break;
    done += static_cast<size_t>(n_read);
  }
  return done;
}

Status WriteAt(int fd, const std::string& name, const void* data, size_t n, uint64_t at) {
  const char* const from = static_cast<const char*>(data);
  for (size_t done = 0; done < n;) {
    const ssize_t written = pwrite(fd, from + done, n - done, static_cast<off_t>(at + done));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return ErrnoError("cannot write", name);
    done += static_cast<size_t>(written);
  }
  return Status();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace tsps
