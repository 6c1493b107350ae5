// PartialFile: a file that one writer at a time writes under a temporary name and then renames.
#ifndef TFSPS_CORE_OS_PARTIAL_FILE_H_
#define TFSPS_CORE_OS_PARTIAL_FILE_H_

#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// A file in progress. Until Publish its name is `.<name>.partial` in the folder of the final path,
// and its writer holds its lock. If the writer is killed, the kernel releases the lock, and the
// next writer of the path takes over the file. So at most one such file is left.
class PartialFile {
 public:
  // Creates the temporary file for `path`, empty and with mode 0600. Aborted: another writer writes
  // this path. PermissionDenied: the temporary name is taken by a file of another kind. Follows no
  // symbolic link.
  static Result<std::unique_ptr<PartialFile>> Create(const std::string& path);
  // Removes the file unless it was published.
  ~PartialFile();

  int fd() const { return fd_; }
  const std::string& name() const { return name_; }
  bool published() const { return name_.empty(); }

  // Renames the file to its final path, in place of a file that is there. May succeed once.
  Status Publish();

 private:
  PartialFile(std::string path, std::string name, int fd);
  const std::string path_;
  std::string name_;  // the temporary path; empty after Publish
  const int fd_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_PARTIAL_FILE_H_
