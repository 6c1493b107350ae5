#include "executor/eigen_executor.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <thread>
#include <unsupported/Eigen/CXX11/ThreadPool>

namespace tsps {
namespace {

// Ranges per thread: enough to even out ranges of unequal work and a helper that starts late, few
// enough that taking one costs nothing.
constexpr size_t kRangesPerThread = 16;
// Looks at a range that another thread is still working on before the caller sleeps: some 10 us,
// less than a wake-up costs.
constexpr int kLooks = 256;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int UsableProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// One ParallelFor. Shared with the workers, some of which may only get to it after it has ended.
class Loop {
 public:
  Loop(size_t n, size_t step, const std::function<void(size_t, size_t)>& body)
      : n_(n), step_(step), ranges_((n + step - 1) / step), unfinished_(ranges_), body_(&body) {}

  size_t ranges() const { return ranges_; }

  // Takes ranges until none is left. `body_` is alive whenever a range could still be taken,
  // because the caller returns only when all are finished.
  void Work() {
    size_t finished = 0;
    for (;;) {
      const size_t range = next_.fetch_add(1, std::memory_order_relaxed);
      if (range >= ranges_) break;
      const size_t begin = range * step_;
      try {
        (*body_)(begin, std::min(n_, begin + step_));
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (error_ == nullptr) error_ = std::current_exception();
      }
      ++finished;
    }
    if (finished > 0 && unfinished_.fetch_sub(finished, std::memory_order_acq_rel) == finished) {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
      all_done_.notify_one();
    }
  }

  // Waits for ranges that other threads have taken; none waits for a range that nobody has. Throws
  // what a range has thrown, the first if several have.
  void Finish() {
    Wait();
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  void Wait() {
    for (int look = 0; look < kLooks; ++look) {
      if (unfinished_.load(std::memory_order_acquire) == 0) return;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_; });
  }

  const size_t n_, step_, ranges_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> unfinished_;
  const std::function<void(size_t, size_t)>* body_;
  std::mutex mutex_;
  std::condition_variable all_done_;
  bool done_ = false;
  std::exception_ptr error_;  // guarded by the mutex while ranges are unfinished
};

}  // namespace

struct EigenExecutor::Pool {
  // Workers do not spin while they are idle: TensorFlow's threads do, and on a machine with few
  // cores the two kinds push each other off them (26 small tables on two cores: 0.8 ms a step,
  // not 1.1).
  explicit Pool(int workers) : workers(workers, /*allow_spinning=*/false) {}
  Eigen::ThreadPool workers;
};

EigenExecutor::EigenExecutor(int threads)
    : threads_(threads > 0 ? threads : UsableProcessors()), creator_(getpid()) {}

EigenExecutor::~EigenExecutor() {
  // In a forked child the pool's destructor would join threads that are not there.
  if (getpid() == creator_) delete pool_.load(std::memory_order_acquire);
}

int EigenExecutor::threads() const {
  const Pool* const pool = pool_.load(std::memory_order_acquire);
  const bool is_worker = pool != nullptr && pool->workers.CurrentThreadId() >= 0;
  return is_worker || getpid() != creator_ ? 1 : threads_;
}

EigenExecutor::Pool* EigenExecutor::StartedPool() {
  Pool* pool = pool_.load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  std::lock_guard<std::mutex> lock(start_);
  pool = pool_.load(std::memory_order_relaxed);
  if (pool == nullptr) {
    pool = new Pool(threads_ - 1);
    pool_.store(pool, std::memory_order_release);
  }
  return pool;
}

void EigenExecutor::ParallelFor(size_t n, size_t grain,
                                const std::function<void(size_t begin, size_t end)>& body) {
  if (n == 0) return;
  const size_t wanted = static_cast<size_t>(threads_) * kRangesPerThread;
  const size_t step = std::max({grain, size_t{1}, (n + wanted - 1) / wanted});
  if (threads_ == 1 || step >= n || getpid() != creator_) return body(0, n);
  Pool* pool = StartedPool();
  if (pool->workers.CurrentThreadId() >= 0) return body(0, n);

  const auto loop = std::make_shared<Loop>(n, step, body);
  const size_t helpers = std::min(static_cast<size_t>(threads_), loop->ranges()) - 1;
  for (size_t i = 0; i < helpers; ++i) pool->workers.Schedule([loop] { loop->Work(); });
  loop->Work();
  loop->Finish();
}

}  // namespace tsps
