#include "core/os/direct_writer.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace tsps {
namespace {

// Returns whether the file is on a network file system, by the numbers of <linux/magic.h> and of
// file systems that it does not list.
bool IsRemote(int fd) {
  struct statfs info;
  if (fstatfs(fd, &info) != 0) return false;
  switch (static_cast<uint32_t>(info.f_type)) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case FUSE_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case V9FS_MAGIC:
    case 0x0BD00BD0:  // Lustre
    case 0x47504653:  // GPFS
      return true;
    default:
      return false;
  }
}

}  // namespace

DirectWriter::DirectWriter(int fd, std::string name, size_t most)
    : fd_(fd), name_(std::move(name)), room_((kBytes + most + kPage - 1) / kPage * kPage) {
  data_.reset(static_cast<char*>(std::aligned_alloc(kPage, room_)));
  if (data_ == nullptr) throw std::bad_alloc();
}

bool DirectWriter::SetDirect(bool direct) {
  const int flags = fcntl(fd_, F_GETFL);
  return flags >= 0 && fcntl(fd_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

Status DirectWriter::WriteFirst(size_t n) {
  for (size_t done = 0; done < n;) {
    const ssize_t written = write(fd_, data_.get() + done, n - done);
    if (written < 0 && errno == EINTR) continue;
    // This file system, or this file, needs other sizes or does not support direct writes.
    if (written < 0 && (errno == EINVAL || errno == EOPNOTSUPP) && direct_) {
      direct_ = false;
      if (SetDirect(false)) continue;
    }
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return ErrnoError("cannot write", name_);
    done += static_cast<size_t>(written);
  }
  size_ -= n;
  std::memmove(data_.get(), data_.get() + n, size_);
  return Status();
}

Status DirectWriter::Write() {
  if (!tried_) {
    tried_ = true;
    direct_ = !IsRemote(fd_) && SetDirect(true);
  }
  return WriteFirst(size_ / kPage * kPage);
}

Status DirectWriter::Finish() {
  if (direct_) {
    TSPS_RETURN_IF_ERROR(Write());
    direct_ = false;
    if (!SetDirect(false)) return ErrnoError("cannot write", name_);
  }
  return WriteFirst(size_);
}

}  // namespace tsps
