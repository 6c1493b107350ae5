// Directories and files that no other user can exchange.
//
// Python checks the whole path of a group and of its rows on disk before core opens them
// (tf_sparse_ps/folders). Core checks what it opens itself: symbolic links are not followed, a
// FIFO cannot block, and directories and files belong to this user.
#ifndef TFSPS_CORE_OS_DIRECTORY_H_
#define TFSPS_CORE_OS_DIRECTORY_H_

#include <sys/stat.h>

#include <string>
#include <vector>

#include "core/base/status.h"

namespace tsps {

// An open directory of this user. Names are removed relative to its descriptor, so that what is
// removed is in this very directory, whatever lies under its path by then.
class Directory {
 public:
  // PermissionDenied if it is a symbolic link, belongs to another user, or can be written by
  // others. DataLoss if it is not a directory.
  static Result<Directory> Open(const std::string& path);

  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&& other) noexcept;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory();

  const std::string& path() const { return path_; }
  std::vector<std::string> Entries() const;
  // Opens a directory in this one, under the same conditions.
  Result<Directory> OpenChild(const std::string& name) const;
  // As OpenRegularFile, of a file in this directory.
  Result<int> OpenFile(const std::string& name, int flags, const char* failed) const;
  // Removes a file, a link or a FIFO. A name that does not exist is no error.
  void Unlink(const std::string& name) const;
  // Removes an empty directory. One that is not empty stays.
  void RemoveChild(const std::string& name) const;

 private:
  Directory(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  static Result<Directory> OpenAt(int parent, const std::string& name, std::string path);

  std::string path_;
  int fd_ = -1;
};

// Creates a directory of mode 0700.
Status MakePrivateDirectory(const std::string& path);
// Whether Directory::Open succeeds, and why not.
Status CheckPrivateDirectory(const std::string& path);
// The names in a directory; none if it cannot be read.
std::vector<std::string> EntriesOf(const std::string& directory);

// Opens a regular file of this user, of mode 0600 if `flags` create it. `failed` begins the message
// of other errors, as in "cannot open". PermissionDenied for symbolic links and for files of other
// users, DataLoss for FIFOs, devices and directories.
Result<int> OpenRegularFile(const std::string& path, int flags, const char* failed);
// The status of an open file, under the same conditions.
Result<struct stat> CheckRegularFile(int fd, const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_DIRECTORY_H_
