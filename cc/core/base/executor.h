// Executor: how core code runs loops in parallel without owning a thread pool.
//
// The pool itself (Eigen's) lives in cc/executor, outside the core, which is C++17 and POSIX only.
#ifndef TFSPS_CORE_BASE_EXECUTOR_H_
#define TFSPS_CORE_BASE_EXECUTOR_H_

#include <cstddef>
#include <functional>
#include <vector>

namespace tsps {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int threads() const = 0;

  // Calls body(begin, end) over disjoint ranges that cover [0, n) and returns when all are done.
  // Ranges have at least `grain` items, except the last. The split may depend on the number of
  // threads, so results must not depend on where the ranges are cut. What a body throws is thrown
  // here, after all ranges.
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

// Calls body(i) for every item, sizes[i] being its share of the work. An item of more than a
// thread's fair share comes alone, so that its own ParallelFor has all threads; the others run side
// by side. For the tables of one call, which may be one huge one, or many small ones, or both.
inline void ForEachItem(const std::vector<size_t>& sizes, Executor& executor,
                        const std::function<void(size_t item)>& body) {
  constexpr size_t kWorthSharing = 1024;  // waking a thread costs as much as some hundred keys
  size_t total = 0;
  for (const size_t size : sizes) total += size;
  std::vector<size_t> small;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (total < kWorthSharing || sizes[i] * static_cast<size_t>(executor.threads()) > total) {
      body(i);
    } else {
      small.push_back(i);
    }
  }
  executor.ParallelFor(small.size(), 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) body(small[i]);
  });
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_EXECUTOR_H_
