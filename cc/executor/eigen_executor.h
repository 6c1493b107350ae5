// EigenExecutor: an Executor over Eigen's work-stealing thread pool.
//
// The pool ships as headers in TensorFlow's include folder; TensorFlow's C API gives kernels none
// of its own.
#ifndef TFSPS_EXECUTOR_EIGEN_EXECUTOR_H_
#define TFSPS_EXECUTOR_EIGEN_EXECUTOR_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "core/base/executor.h"

namespace tsps {

// Thread-safe: several threads may call ParallelFor at once and share the workers.
//
// A call from inside one of the pool's threads runs serially, so nesting cannot wait for itself. In
// a child of fork(), where the workers do not exist, everything runs serially. threads() is 1
// there.
class EigenExecutor final : public Executor {
 public:
  // `threads` includes the calling one; 0 means one per processor that this process may use. The
  // pool's threads start with the first call that has work for more than one.
  explicit EigenExecutor(int threads);
  // Not while a ParallelFor runs.
  ~EigenExecutor() override;
  EigenExecutor(const EigenExecutor&) = delete;
  EigenExecutor& operator=(const EigenExecutor&) = delete;

  int threads() const override;
  void ParallelFor(size_t n, size_t grain,
                   const std::function<void(size_t begin, size_t end)>& body) override;

 private:
  struct Pool;
  Pool* StartedPool();

  const int threads_;
  const pid_t creator_;
  std::mutex start_;
  std::atomic<Pool*> pool_{nullptr};  // owned; atomic for the calls after the first
};

}  // namespace tsps

#endif  // TFSPS_EXECUTOR_EIGEN_EXECUTOR_H_
