#include "core/os/file_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "core/base/fault_point.h"
#include "core/os/directory.h"

namespace tsps {
namespace {

// Descriptors that a forked child must close. The one exception to "no process-global state in the
// core": the table of descriptors that fork copies is itself process-global.
constexpr int kMaxLocks = 64;
int held_descriptors[kMaxLocks];  // fd + 1, 0: free

// Held while a descriptor is open and not in the table, and by whoever forks: a child has none but
// those in its table, which it closes. Never destroyed: at exit, other threads may still fork.
std::mutex& Mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

void BeforeFork() { Mutex().lock(); }
void AfterForkInParent() { Mutex().unlock(); }
void AfterForkInChild() {
  for (int& slot : held_descriptors) {
    if (slot > 0) close(slot - 1);
    slot = 0;
  }
  Mutex().unlock();
}

bool RememberDescriptor(int fd) {
  for (int& slot : held_descriptors) {
    if (slot != 0) continue;
    slot = fd + 1;
    return true;
  }
  return false;
}

void ForgetDescriptor(int fd) {
  for (int& slot : held_descriptors) {
    if (slot == fd + 1) slot = 0;
  }
}

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

Result<std::unique_ptr<FileLock>> FileLock::Acquire(const std::string& path, const char* holder) {
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  if (registered != 0) {
    return Error(Code::kResourceExhausted, "cannot prepare for forks: ", path, " is not locked");
  }
  const std::lock_guard<std::mutex> no_fork(Mutex());
  TSPS_ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDWR | O_CREAT, "cannot open lock"));
  struct flock lock = WholeFile();
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    const bool held = errno == EAGAIN || errno == EACCES;
    Status status =
        held ? Error(Code::kAborted, path, " is held: ", holder) : ErrnoError("cannot lock", path);
    close(fd);
    return status;
  }
  TSPS_FAULT_POINT("file_lock.taken");
  if (!RememberDescriptor(fd)) {
    close(fd);
    return Error(Code::kResourceExhausted, "this process holds ", kMaxLocks,
                 " locks already: ", path);
  }
  return std::unique_ptr<FileLock>(new FileLock(fd, getpid()));
}

FileLock::~FileLock() {
  // In a forked child the descriptor was closed: the number may be another file's by now.
  if (!HeldByThisProcess()) return;
  const std::lock_guard<std::mutex> no_fork(Mutex());
  ForgetDescriptor(fd_);
  close(fd_);
}

bool FileLock::HeldByThisProcess() const { return getpid() == pid_; }

Result<std::unique_ptr<LockProbe>> LockProbe::Open(const std::string& path) {
  TSPS_ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY, "cannot open lock"));
  return std::unique_ptr<LockProbe>(new LockProbe(fd));
}

LockProbe::~LockProbe() { close(fd_); }

bool LockProbe::Held() const {
  struct flock lock = WholeFile();
  // An error cannot tell; "alive" then leads to a timeout instead of a wrong report of death.
  if (fcntl(fd_, F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

}  // namespace tsps
