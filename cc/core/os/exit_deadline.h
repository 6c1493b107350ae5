// ExitDeadline: ends the process unless it is cancelled in time.
//
// For calls into other libraries that may wait for ever. A thread of the core watches: Python's
// would need the interpreter's lock, which such a call may hold.
#ifndef TFSPS_CORE_OS_EXIT_DEADLINE_H_
#define TFSPS_CORE_OS_EXIT_DEADLINE_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace tsps {

class ExitDeadline {
 public:
  // After `seconds` the message goes to standard error, as a line, and the process ends with exit
  // status 1, without its exit handlers.
  ExitDeadline(double seconds, std::string message);
  ~ExitDeadline() { Cancel(); }
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

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
