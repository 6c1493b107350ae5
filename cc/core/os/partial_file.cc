#include "core/os/partial_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace tsps {
namespace {

std::string PartialName(const std::string& path) {
  const size_t base = path.rfind('/') + 1;  // npos + 1 is 0
  return path.substr(0, base) + "." + path.substr(base) + ".partial";
}

// The lock belongs to the open file description, so another one of this process is refused, too.
bool SetLock(int fd, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// Returns whether the name still leads to the open file. The previous writer may have renamed or
// removed it between our open and our lock.
bool IsNamed(const struct stat& file, const std::string& name) {
  struct stat named;
  return lstat(name.c_str(), &named) == 0 && named.st_dev == file.st_dev &&
         named.st_ino == file.st_ino;
}

// Returns a descriptor of the locked file; -1 if the file system does not support locks.
Result<int> OpenLocked(const std::string& path, const std::string& name) {
  for (;;) {
    const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) return ErrnoError("cannot create a temporary file for", path);
    if (!SetLock(fd, F_WRLCK)) {
      const bool held = errno == EAGAIN || errno == EACCES;
      close(fd);
      if (!held) return -1;
      return Error(Code::kAborted, "cannot write ", path,
                   ": another writer is writing it and has locked ", name,
                   ". Only one rank may save to a path at a time");
    }
    struct stat file;
    if (fstat(fd, &file) == 0 && IsNamed(file, name)) {
      if (S_ISREG(file.st_mode) && file.st_uid == geteuid() && file.st_nlink == 1) return fd;
      close(fd);
      return Error(Code::kPermissionDenied, "cannot write ", path, ": ", name,
                   " is in the way. It is not a regular file of this user with a single name. "
                   "Remove it, or save to another path");
    }
    close(fd);
  }
}

}  // namespace

PartialFile::PartialFile(std::string path, std::string name, int fd)
    : path_(std::move(path)), name_(std::move(name)), fd_(fd) {}

PartialFile::~PartialFile() {
  if (!published()) unlink(name_.c_str());
  SetLock(fd_, F_UNLCK);  // a child that was forked meanwhile has a copy of the descriptor
  close(fd_);
}

Result<std::unique_ptr<PartialFile>> PartialFile::Create(const std::string& path) {
  std::string name = PartialName(path);
  TSPS_ASSIGN_OR_RETURN(int fd, OpenLocked(path, name));
  if (fd < 0) {
    unlink(name.c_str());
    // Without locks each writer has its own file, and that of a killed writer stays.
    name = path + ".XXXXXX";
    fd = mkostemp(name.data(), O_CLOEXEC);
    if (fd < 0) return ErrnoError("cannot create a temporary file for", path);
  }
  std::unique_ptr<PartialFile> file(new PartialFile(path, std::move(name), fd));
  if (ftruncate(fd, 0) != 0) return ErrnoError("cannot empty", file->name());
  return file;
}

Status PartialFile::Publish() {
  if (rename(name_.c_str(), path_.c_str()) != 0) {
    return ErrnoError("cannot rename " + name_ + " to", path_);
  }
  name_.clear();
  return Status();
}

}  // namespace tsps
