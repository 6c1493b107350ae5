// A file that is written beside its final name, by one writer at a time, and renamed when complete.
#ifndef TFSPS_CORE_OS_PARTIAL_FILE_H_
#define TFSPS_CORE_OS_PARTIAL_FILE_H_

#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// While it is written it is `.<name>.partial`, which its writer holds locked. The kernel gives up a
// killed writer's lock; the next writer of the path takes over its file, so that at most one is
// left.
class PartialFile {
 public:
  // Empty, with mode 0600. kAborted: another writer is at it. Follows no symlink.
  static Result<std::unique_ptr<PartialFile>> Create(const std::string& path);
  ~PartialFile();  // removes it unless it was published

  int fd() const { return fd_; }
  const std::string& name() const { return name_; }
  bool published() const { return name_.empty(); }

  // Gives it its final name, in place of what is there. Once.
  Status Publish();

 private:
  PartialFile(std::string path, std::string name, int fd);
  const std::string path_;
  std::string name_;  // empty once it has its final name
  const int fd_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_PARTIAL_FILE_H_
