// Executor: how core code runs loops in parallel without owning a thread pool.
//
// The pool itself (Eigen's) lives in cc/executor, outside the core, which is C++17 and POSIX only.
#ifndef TFSPS_CORE_EXECUTOR_H_
#define TFSPS_CORE_EXECUTOR_H_

#include <cstddef>
#include <functional>

namespace tsps {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int threads() const = 0;

  // Calls body(begin, end) over disjoint ranges that cover [0, n) and returns when all are done.
  // Ranges have at least `grain` items, except the last. The split may depend on the number of
  // threads, so results must not depend on where the ranges are cut.
  virtual void ParallelFor(size_t n, size_t grain,
                           const std::function<void(size_t begin, size_t end)>& body) = 0;
};

// Runs everything on the calling thread.
class SerialExecutor final : public Executor {
 public:
  int threads() const override { return 1; }
  void ParallelFor(size_t n, size_t, const std::function<void(size_t, size_t)>& body) override {
    if (n > 0) body(0, n);
  }
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXECUTOR_H_
