#include "kernels/process.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "executor/eigen_executor.h"

namespace tsps {
namespace {

struct Pool {
  std::mutex mutex;
  std::shared_ptr<Executor> executor;
};

// Never destroyed: at exit, TensorFlow's threads may still run kernels.
Pool& SharedPool() {
  static Pool* const pool = new Pool;
  return *pool;
}

}  // namespace

WireCounters& ProcessWireCounters() {
  static WireCounters* const counters = new WireCounters;
  return *counters;
}

void HoldTerminate() {
  static const std::terminate_handler previous = std::set_terminate([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    previous();
  });
}

std::shared_ptr<Executor> SharedExecutor() {
  Pool& pool = SharedPool();
  std::lock_guard<std::mutex> lock(pool.mutex);
  if (pool.executor == nullptr) pool.executor = std::make_shared<EigenExecutor>(0);
  return pool.executor;
}

void SetThreads(int threads) {
  std::shared_ptr<Executor> executor = std::make_shared<EigenExecutor>(threads);
  Pool& pool = SharedPool();
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.executor.swap(executor);  // the old pool's threads end after the lock
}

}  // namespace tsps
