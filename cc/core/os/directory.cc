#include "core/os/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tsps {
namespace {

Status CheckOwner(const struct stat& info, const std::string& path) {
  if (info.st_uid == geteuid()) return Status();
  return Error(Code::kPermissionDenied, path, " belongs to user ", info.st_uid, ", not to user ",
               geteuid(), ". Files of other users are not used. Choose a folder of your own");
}

Status IsLink(const std::string& path) {
  return Error(Code::kPermissionDenied, path,
               " is a symbolic link, which could lead to another user's files. Use the path that "
               "it leads to");
}

std::vector<std::string> ReadAndClose(DIR* directory) {
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(directory);
  return names;
}

}  // namespace

Result<Directory> Directory::Open(const std::string& path) { return OpenAt(AT_FDCWD, path, path); }

Result<Directory> Directory::OpenAt(int parent, const std::string& name, std::string path) {
  const int fd = openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    struct stat info;
    if ((error == ELOOP || error == ENOTDIR) &&
        fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      if (S_ISLNK(info.st_mode)) return IsLink(path);
      if (!S_ISDIR(info.st_mode)) return Error(Code::kDataLoss, path, " is not a directory");
    }
    errno = error;
    return ErrnoError("cannot open directory", path);
  }
  Directory directory(std::move(path), fd);
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoError("cannot stat", directory.path_);
  TSPS_RETURN_IF_ERROR(CheckOwner(info, directory.path_));
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error(Code::kPermissionDenied, directory.path_,
                 " can be written by other users, who could replace a table. Run `chmod go-w ",
                 directory.path_, "`");
  }
  return directory;
}

Directory::Directory(Directory&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

Directory& Directory::operator=(Directory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

Directory::~Directory() {
  if (fd_ >= 0) close(fd_);
}

std::vector<std::string> Directory::Entries() const {
  // This needs another description of the directory: readdir moves a position that descriptors of
  // one description share.
  const int fd = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return {};
  DIR* const directory = fdopendir(fd);
  if (directory != nullptr) return ReadAndClose(directory);
  close(fd);
  return {};
}

Result<Directory> Directory::OpenChild(const std::string& name) const {
  return OpenAt(fd_, name, path_ + "/" + name);
}

void Directory::Unlink(const std::string& name) const { unlinkat(fd_, name.c_str(), 0); }

void Directory::RemoveChild(const std::string& name) const {
  unlinkat(fd_, name.c_str(), AT_REMOVEDIR);
}

Status MakePrivateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0) return ErrnoError("cannot create directory", path);
  return Status();
}

Status CheckPrivateDirectory(const std::string& path) { return Directory::Open(path).status(); }

std::vector<std::string> EntriesOf(const std::string& directory) {
  DIR* const stream = opendir(directory.c_str());
  return stream == nullptr ? std::vector<std::string>() : ReadAndClose(stream);
}

namespace {

Result<int> OpenRegularFileAt(int directory, const std::string& name, const std::string& path,
                              int flags, const char* failed) {
  // O_NONBLOCK: without it, opening a FIFO would wait for another process. It has no effect on
  // files.
  const int fd = openat(directory, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) {
    if (errno == ELOOP) return IsLink(path);
    if (errno == ENXIO) return Error(Code::kDataLoss, path, " is not a regular file");
    return ErrnoError(failed, path);
  }
  const Status status = CheckRegularFile(fd, path).status();
  if (status.ok()) return fd;
  close(fd);
  return status;
}

}  // namespace

Result<int> Directory::OpenFile(const std::string& name, int flags, const char* failed) const {
  return OpenRegularFileAt(fd_, name, path_ + "/" + name, flags, failed);
}

Result<int> OpenRegularFile(const std::string& path, int flags, const char* failed) {
  return OpenRegularFileAt(AT_FDCWD, path, path, flags, failed);
}

Result<struct stat> CheckRegularFile(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoError("cannot stat", path);
  if (!S_ISREG(info.st_mode)) return Error(Code::kDataLoss, path, " is not a regular file");
  TSPS_RETURN_IF_ERROR(CheckOwner(info, path));
  return info;
}

}  // namespace tsps
