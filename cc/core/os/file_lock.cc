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

// The descriptors that a forked child must close. This is the one exception to "no process-global
// state in the core": the table of descriptors that fork copies is itself process-global.
constexpr int kMaxLocks = 64;
int held_descriptors[kMaxLocks];  // fd + 1, 0: free

// Locked while a descriptor is open and not in the table, and during a fork. So all descriptors of
// a child are in its table, and it closes them. The mutex is never destroyed, because other threads
// may still fork at exit.
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
    return Error(Code::kResourceExhausted, "cannot lock ", path,
                 ": this process cannot register handlers for forks (pthread_atfork)");
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
    return Error(Code::kResourceExhausted, "cannot lock ", path, ": this process holds ", kMaxLocks,
                 " locks, which is the limit. Close groups that it does not need");
  }
  return std::unique_ptr<FileLock>(new FileLock(fd, getpid()));
}

FileLock::~FileLock() {
  // In a forked child the descriptor is closed, and another file may have its number.
  if (!HeldByThisProcess()) return;
  const std::lock_guard<std::mutex> no_fork(Mutex());
  // Closing alone would keep the lock as long as a child has a copy: one that has not yet run its
  // handler, or one of vfork, which runs no handlers, until its exec.
  struct flock unlock = WholeFile();
  unlock.l_type = F_UNLCK;
  fcntl(fd_, F_OFD_SETLK, &unlock);
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
  // An error says nothing about the holder. "Alive" then leads to a timeout, not to a wrong report
  // of a death.
  if (fcntl(fd_, F_OFD_GETLK, &lock) != 0) return true;
  return lock.l_type != F_UNLCK;
}

}  // namespace tsps
