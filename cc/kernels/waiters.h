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

// Threads that wait instead of TensorFlow's threads. There are as many as waits were pending at
// once, a few in practice. Idle threads stay for the next wait.
class Waiters {
 public:
  // Returns the threads, which are never destroyed: GroupRegistry::CloseAll ends the waits at exit,
  // and the threads end with the process.
  static Waiters& Get();

  void Run(std::function<void()> wait);

 private:
  [[noreturn]] void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> pending_;
  size_t idle_ = 0;
};

// Runs `body` on one of the threads, and calls `done` with its result.
void RunOnWaiter(const Done& done, std::function<Status()> body);

// Does the same for a body whose op can be done before the body returns. The body calls its
// ReportDone when all outputs are set. After that it must not fail, nor use the kernel or its
// context.
using ReportDone = std::function<void()>;
void RunOnWaiter(const Done& done, std::function<Status(const ReportDone&)> body);
// Runs such a body in the calling thread. It must not wait for other ranks.
void RunHere(const Done& done, const std::function<Status(const ReportDone&)>& body);

}  // namespace tsps

#endif  // TFSPS_KERNELS_WAITERS_H_
