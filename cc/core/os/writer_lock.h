// WriterLock: who holds it writes the group. Also the liveness probe of the writer.
//
// An open-file-description lock, not flock or a POSIX record lock: it works across PID namespaces,
// a second handle in the same process is refused, and closing another descriptor of the file does
// not drop it. A fork would share it with the child and keep it held after the parent's death, so
// children close their copy (pthread_atfork), and a fork waits while a lock is being taken or given
// back.
#ifndef TFSPS_CORE_OS_WRITER_LOCK_H_
#define TFSPS_CORE_OS_WRITER_LOCK_H_

#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

class WriterLock {
 public:
  // Aborted when the lock is held; `holder` says by whom.
  static Result<std::unique_ptr<WriterLock>> Acquire(
      const std::string& path, const char* holder = "the group has a writer already");
  ~WriterLock();

  // False in a forked child of the process that acquired the lock.
  bool HeldByThisProcess() const;

 private:
  WriterLock(int fd, int pid) : fd_(fd), pid_(pid) {}
  const int fd_;
  const int pid_;
};

// Looks whether anyone holds the lock, without taking it. Thread-safe.
class WriterProbe {
 public:
  static Result<std::unique_ptr<WriterProbe>> Open(const std::string& path);
  ~WriterProbe();
  bool WriterAlive() const;

 private:
  explicit WriterProbe(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_WRITER_LOCK_H_
