#include "kernels/process.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "executor/eigen_executor.h"
#include "kernels/group_registry.h"

namespace tsps {
namespace {

struct Pools {
  std::mutex mutex;
  std::shared_ptr<Executor> shared, writer;  // may be the same executor
};

// Never destroyed: at exit, TensorFlow's threads may still run kernels.
Pools& ProcessPools() {
  static Pools* const pools = new Pools;
  return *pools;
}

// Called with the mutex. The threads of the old pools end with their last user.
void Replace(Pools* pools, int threads, int writer_threads) {
  pools->shared = std::make_shared<EigenExecutor>(threads);
  pools->writer =
      writer_threads == threads ? pools->shared : std::make_shared<EigenExecutor>(writer_threads);
}

std::shared_ptr<Executor> Get(std::shared_ptr<Executor> Pools::* which) {
  Pools& pools = ProcessPools();
  std::lock_guard<std::mutex> lock(pools.mutex);
  if (pools.*which == nullptr) Replace(&pools, 0, 0);
  return pools.*which;
}

}  // namespace

WireCounters& ProcessWireCounters() {
  static WireCounters* const counters = new WireCounters;
  return *counters;
}

namespace {

// The number of steps that had been made when an op failed; -1: no op has failed.
std::atomic<int64_t> steps_when_out_of_room{-1};

}  // namespace

void NoteOutOfRoom() {
  steps_when_out_of_room.store(static_cast<int64_t>(GroupRegistry::Get().steps_applied()));
}

bool OutOfRoom() {
  return steps_when_out_of_room.load() ==
         static_cast<int64_t>(GroupRegistry::Get().steps_applied());
}

void HoldTerminate() {
  static const std::terminate_handler previous = std::set_terminate([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    previous();
  });
}

std::shared_ptr<Executor> SharedExecutor() { return Get(&Pools::shared); }

std::shared_ptr<Executor> WriterExecutor() { return Get(&Pools::writer); }

void SetThreads(int threads, int writer_threads) {
  Pools& pools = ProcessPools();
  std::shared_ptr<Executor> shared, writer;  // the old pools, which end after the lock is released
  std::lock_guard<std::mutex> lock(pools.mutex);
  shared = pools.shared;
  writer = pools.writer;
  Replace(&pools, threads, writer_threads);
}

}  // namespace tsps
