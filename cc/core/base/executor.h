// Executor: runs loops of the core in parallel. The core itself owns no thread pool.
//
// The pool (Eigen's) is in cc/executor, outside the core, because the core uses only C++17 and
// POSIX.
#ifndef TFSPS_CORE_BASE_EXECUTOR_H_
#define TFSPS_CORE_BASE_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tsps {

class Executor {
 public:
  virtual ~Executor() = default;
  // Returns the number of threads that a loop which begins here may have.
  virtual int threads() const = 0;

  // Calls body(begin, end) for disjoint ranges that cover [0, n), and returns after all of them.
  // Each range has at least `grain` items, except the last. The split may depend on the number of
  // threads, so results must not depend on where ranges begin and end. If a body throws, the
  // exception is thrown here after all ranges are done.
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

// Calls body(share, shares) for all shares, in parallel, or with one share if `worth_sharing` is
// false. It is for loops in which an item belongs to one share, by its key or row: every call goes
// through all items, and takes its own.
inline void ForEachShare(bool worth_sharing, Executor& executor,
                         const std::function<void(size_t share, size_t shares)>& body) {
  const size_t shares = worth_sharing ? static_cast<size_t>(executor.threads()) : 1;
  executor.ParallelFor(shares, 1, [&](size_t begin, size_t end) {
    for (size_t share = begin; share < end; ++share) body(share, shares);
  });
}

// Returns the share that the items of this number belong to.
inline size_t ShareOf(uint32_t number, size_t shares) {
  return static_cast<size_t>((uint64_t{number * 2654435761u} * shares) >> 32);
}

// Calls body(i) for every item. sizes[i] is the amount of work of item i. An item with more than a
// thread's fair share runs alone, so that its own ParallelFor has all threads; the other items run
// in parallel. The tables of one call are such items: one may be huge, many may be small.
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
