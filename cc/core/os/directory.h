// Directories and files that no other user can exchange.
//
// Python checks the whole path of a group, and of its rows on disk, before the core opens them
// (tf_sparse_ps/folders). The core checks the last component itself: it follows no symbolic links,
// does not block on a FIFO, and accepts only directories and files of this user.
#ifndef TFSPS_CORE_OS_DIRECTORY_H_
#define TFSPS_CORE_OS_DIRECTORY_H_

#include <sys/stat.h>

#include <string>
#include <vector>

#include "core/base/status.h"

namespace tsps {

// An open directory of this user. Files are removed relative to its descriptor, so that they are
// removed from this very directory, even if its path leads elsewhere by then.
class Directory {
 public:
  // Opens a directory. PermissionDenied: it is a symbolic link, belongs to another user, or can be
  // written by others. DataLoss: it is not a directory.
  static Result<Directory> Open(const std::string& path);

  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&& other) noexcept;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory();

  const std::string& path() const { return path_; }
  // Returns the names in the directory; none if it cannot be read.
  std::vector<std::string> Entries() const;
  // Opens a directory in this one, under the conditions of Open.
  Result<Directory> OpenChild(const std::string& name) const;
  // Opens a file in this directory as OpenRegularFile does.
  Result<int> OpenFile(const std::string& name, int flags, const char* failed) const;
  // Removes a file, a link or a FIFO. If the name does not exist, nothing happens.
  void Unlink(const std::string& name) const;
  // Removes a directory in this one if it is empty; otherwise it stays.
  void RemoveChild(const std::string& name) const;

 private:
  Directory(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  static Result<Directory> OpenAt(int parent, const std::string& name, std::string path);

  std::string path_;
  int fd_ = -1;
};

// Creates a directory with mode 0700.
Status MakePrivateDirectory(const std::string& path);
// Returns OK if Directory::Open would succeed, else its error.
Status CheckPrivateDirectory(const std::string& path);
// Returns the names in a directory; none if it cannot be read.
std::vector<std::string> EntriesOf(const std::string& directory);

// Opens a regular file of this user and returns its descriptor; the caller closes it. If `flags`
// create the file, it has mode 0600. PermissionDenied: it is a symbolic link or another user's
// file. DataLoss: it is a FIFO, a device or a directory. `failed` begins the message of other
// errors, as in "cannot open".
Result<int> OpenRegularFile(const std::string& path, int flags, const char* failed);
// Returns the status of an open file, under the same conditions.
Result<struct stat> CheckRegularFile(int fd, const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_DIRECTORY_H_
