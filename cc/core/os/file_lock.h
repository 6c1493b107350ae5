// FileLock: its holder may do something alone: write a group, be a certain rank, or use a scan's
// place. LockProbe asks whether the holder lives.
//
// It is an open-file-description lock, not flock or a POSIX record lock: it works across PID
// namespaces, a second handle in the same process is refused, and closing another descriptor of the
// file does not release it. A fork would share the lock with the child and keep it after the
// parent's death. So children close their copy (pthread_atfork), and a fork waits while a lock is
// being acquired or released.
#ifndef TFSPS_CORE_OS_FILE_LOCK_H_
#define TFSPS_CORE_OS_FILE_LOCK_H_

#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// A lock that this process holds. The destructor releases it; so does the end of the process.
class FileLock {
 public:
  // Creates the file if it does not exist, and locks it, without waiting. Aborted: another handle
  // holds the lock; `holder` says in the message who that is. Thread-safe.
  static Result<std::unique_ptr<FileLock>> Acquire(
      const std::string& path, const char* holder = "the group has a writer already");
  ~FileLock();

  // Returns false in a forked child of the process that acquired the lock.
  bool HeldByThisProcess() const;

 private:
  FileLock(int fd, int pid) : fd_(fd), pid_(pid) {}
  const int fd_;
  const int pid_;
};

// Finds out whether anybody holds the lock, without acquiring it. Thread-safe.
class LockProbe {
 public:
  // Opens the file of a lock, which must exist.
  static Result<std::unique_ptr<LockProbe>> Open(const std::string& path);
  ~LockProbe();
  // Returns whether a handle of any process holds the lock; true if that cannot be found out.
  bool Held() const;

 private:
  explicit LockProbe(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_FILE_LOCK_H_
