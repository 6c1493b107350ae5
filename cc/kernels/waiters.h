// Waiters: threads for asynchronous kernels that block.
#ifndef TFSPS_KERNELS_WAITERS_H_
#define TFSPS_KERNELS_WAITERS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "kernels/async_kernel.h"

namespace tsps {

// Threads that wait in place of TensorFlow's: as many as waits are pending at once, a few in
// practice. They stay for the next wait.
class Waiters {
 public:
  // Never destroyed: CloseAll ends the waits at exit, the threads end with the process.
  static Waiters& Get();

  void Run(std::function<void()> wait);

 private:
  [[noreturn]] void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> pending_;
  size_t idle_ = 0;
};

// Runs `body` on one of them and reports how it ended.
void RunOnWaiter(const Done& done, std::function<Status()> body);

// The same for a body that can be done, for TensorFlow, before it ends. It calls what it is given
// when its outputs are set; from then on it must not fail, nor use the kernel or its context.
using ReportDone = std::function<void()>;
void RunOnWaiter(const Done& done, std::function<Status(const ReportDone&)> body);
// The same in the calling thread, for a body that works and waits for nobody.
void RunHere(const Done& done, const std::function<Status(const ReportDone&)>& body);

}  // namespace tsps

#endif  // TFSPS_KERNELS_WAITERS_H_
