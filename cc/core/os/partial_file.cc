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

// Of the open file description: another one of this process is refused, too.
bool SetLock(int fd, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

// The writer before may have renamed or removed the file between our open and our lock.
bool IsNamed(const struct stat& file, const std::string& name) {
  struct stat there;
  return lstat(name.c_str(), &there) == 0 && there.st_dev == file.st_dev &&
         there.st_ino == file.st_ino;
}

// A descriptor of the file, locked. -1: this file system has no locks.
Result<int> OpenLocked(const std::string& path, const std::string& name) {
  for (;;) {
    const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) return ErrnoError("cannot create a file beside", path);
    if (!SetLock(fd, F_WRLCK)) {
      const bool held = errno == EAGAIN || errno == EACCES;
      close(fd);
      if (!held) return -1;
      return Error(Code::kAborted, "cannot write ", path, ": another writer is at it (it holds ",
                   name, "). One rank alone may save to a path at a time");
    }
    struct stat file;
    if (fstat(fd, &file) == 0 && IsNamed(file, name)) {
      if (S_ISREG(file.st_mode) && file.st_uid == geteuid() && file.st_nlink == 1) return fd;
      close(fd);
      return Error(Code::kPermissionDenied, "cannot write ", path, ": ", name,
                   " is in the way, and not a file of this user's under this name alone");
    }
    close(fd);
  }
}

}  // namespace

PartialFile::PartialFile(std::string path, std::string name, int fd)
    : path_(std::move(path)), name_(std::move(name)), fd_(fd) {}

PartialFile::~PartialFile() {
  if (!published()) unlink(name_.c_str());
  SetLock(fd_, F_UNLCK);  // a child that was forked meanwhile has the descriptor, too
  close(fd_);
}

Result<std::unique_ptr<PartialFile>> PartialFile::Create(const std::string& path) {
  std::string name = PartialName(path);
  TSPS_ASSIGN_OR_RETURN(int fd, OpenLocked(path, name));
  if (fd < 0) {
    unlink(name.c_str());
    name = path + ".XXXXXX";  // without locks: each writer its own, and a killed one's stays
    fd = mkostemp(name.data(), O_CLOEXEC);
    if (fd < 0) return ErrnoError("cannot create a file beside", path);
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
