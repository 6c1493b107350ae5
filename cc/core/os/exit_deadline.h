// ExitDeadline: ends the process unless it is cancelled in time.
//
// It surrounds calls into other libraries that may wait forever. A thread of the core watches the
// time, because a thread of Python would need the interpreter's lock, which such a call may hold.
#ifndef TFSPS_CORE_OS_EXIT_DEADLINE_H_
#define TFSPS_CORE_OS_EXIT_DEADLINE_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tsps {

// A deadline of the process. Cancel may be called more than once, but not by two threads at once.
class ExitDeadline {
 public:
  // After `seconds`, writes the message as a line to standard error and ends the process with exit
  // status 1, without its exit handlers.
  ExitDeadline(double seconds, std::string message);
  ~ExitDeadline() { Cancel(); }
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

  // Cancels the deadline and waits for its thread. The message is not written afterwards.
  void Cancel();

 private:
  void Watch(std::chrono::steady_clock::time_point deadline);

  const std::string message_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool cancelled_ = false;
  std::thread thread_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_EXIT_DEADLINE_H_
