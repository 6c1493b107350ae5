#include "core/os/direct_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace tsps {

DirectWriter::DirectWriter(int fd, std::string name, size_t most)
    : fd_(fd), name_(std::move(name)) {
  const size_t bytes = (kBytes + most + kPage - 1) / kPage * kPage;
  data_.reset(static_cast<char*>(std::aligned_alloc(kPage, bytes)));
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
    if (written < 0 && errno == EINVAL && direct_) {  // this file system wants other sizes
      direct_ = false;
      if (SetDirect(false)) continue;
    }
    if (written < 0) return ErrnoError("cannot write", name_);
    done += static_cast<size_t>(written);
  }
  size_ -= n;
  std::memmove(data_.get(), data_.get() + n, size_);
  return Status();
}

Status DirectWriter::Write() {
  if (!tried_) {
    tried_ = true;
    direct_ = SetDirect(true);
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
