#include "core/writer_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tsps {
namespace {

// Descriptors that a forked child must close. The one exception to "no process-global state in the
// core": the table of descriptors that fork copies is itself process-global, and the handler may
// use nothing but lock-free loads.
constexpr int kMaxLocks = 64;
std::atomic<int> held_descriptors[kMaxLocks];  // fd + 1, 0: free

void CloseInChild() {
  for (auto& slot : held_descriptors) {
    const int fd = slot.exchange(0) - 1;
    if (fd >= 0) close(fd);
  }
}

bool RememberDescriptor(int fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, CloseInChild);
  if (registered != 0) return false;
  for (auto& slot : held_descriptors) {
    int expected = 0;
    if (slot.compare_exchange_strong(expected, fd + 1)) return true;
  }
  return false;
}

void ForgetDescriptor(int fd) {
  for (auto& slot : held_descriptors) {
    int expected = fd + 1;
    if (slot.compare_exchange_strong(expected, 0)) return;
  }
}

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

Result<int> OpenLockFile(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoError("cannot open writer lock", path);
  return fd;
}

}  // namespace

Result<std::unique_ptr<WriterLock>> WriterLock::Acquire(const std::string& path,
                                                        const char* holder) {
  TSPS_ASSIGN_OR_RETURN(const int fd, OpenLockFile(path, O_RDWR | O_CREAT));
  struct flock lock = WholeFile();
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    const bool held = errno == EAGAIN || errno == EACCES;
    Status status =
        held ? Error(Code::kAborted, path, " is held: ", holder) : ErrnoError("cannot lock", path);
    close(fd);
    return status;
  }
  if (!RememberDescriptor(fd)) {
    close(fd);
    return Error(Code::kResourceExhausted, "this process holds ", kMaxLocks,
                 " writer locks already: ", path);
  }
  return std::unique_ptr<WriterLock>(new WriterLock(fd, getpid()));
}

WriterLock::~WriterLock() {
  if (!HeldByThisProcess()) return;  // CloseInChild has: the number may be another file's by now
  ForgetDescriptor(fd_);
  close(fd_);
}

bool WriterLock::HeldByThisProcess() const { return getpid() == pid_; }

Result<std::unique_ptr<WriterProbe>> WriterProbe::Open(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(const int fd, OpenLockFile(path, O_RDONLY));
  return std::unique_ptr<WriterProbe>(new WriterProbe(fd));
}

WriterProbe::~WriterProbe() { close(fd_); }

bool WriterProbe::WriterAlive() const {
  struct flock lock = WholeFile();
  // An error cannot tell; "alive" then leads to a timeout instead of a wrong report of death.
  if (fcntl(fd_, F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

}  // namespace tsps
