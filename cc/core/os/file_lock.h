// FileLock: who holds it may do something alone: write a group, be a rank, have a scan's place.
// Also the liveness probe of who holds it.
//
// An open-file-description lock, not flock or a POSIX record lock: it works across PID namespaces,
// a second handle in the same process is refused, and closing another descriptor of the file does
// not drop it. A fork would share it with the child and keep it held after the parent's death, so
// children close their copy (pthread_atfork), and a fork waits while a lock is being taken or given
// back.
#ifndef TFSPS_CORE_OS_FILE_LOCK_H_
#define TFSPS_CORE_OS_FILE_LOCK_H_

#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

class FileLock {
 public:
  // Aborted when the lock is held; `holder` says by whom.
  static Result<std::unique_ptr<FileLock>> Acquire(
      const std::string& path, const char* holder = "the group has a writer already");
  ~FileLock();

  // False in a forked child of the process that acquired the lock.
  bool HeldByThisProcess() const;

 private:
  FileLock(int fd, int pid) : fd_(fd), pid_(pid) {}
  const int fd_;
  const int pid_;
};

// Looks whether anyone holds the lock, without taking it. Thread-safe.
class LockProbe {
 public:
  static Result<std::unique_ptr<LockProbe>> Open(const std::string& path);
  ~LockProbe();
  bool Held() const;

 private:
  explicit LockProbe(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_FILE_LOCK_H_
