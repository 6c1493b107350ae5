// IoThreads: threads that wait for a disk, so that many reads are in flight at once.
//
// They are separate from the executor's threads, which compute: a thread that waits for a read
// takes no processor. Several callers share the threads. Items of an urgent job run first.
#ifndef TFSPS_CORE_TIER_IO_THREADS_H_
#define TFSPS_CORE_TIER_IO_THREADS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/tier/page_buffer.h"

namespace tsps {

class IoThreads {
 public:
  // Starts the threads. Each has a read buffer of `buffer_bytes`.
  static Result<std::unique_ptr<IoThreads>> Start(int threads, size_t buffer_bytes);
  // Returns the threads that all stores of the process share, and starts them on the first call: 32
  // threads with buffers of 1 MiB, of which only the pages that a read touches take memory.
  static Result<IoThreads*> OfProcess();
  ~IoThreads();  // No job may be running. Not in a forked child, which has no such threads.
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  using Body = std::function<Status(size_t item, const PageBuffer& buffer)>;
  // Calls body(item) for items 0 to n - 1 on the threads. Returns when all calls have returned,
  // with the first error; after an error no further item starts. Thread-safe. A forked child has
  // none of its parent's threads, and calls body itself, item by item.
  Status Run(size_t n, bool urgent, const Body& body);

  size_t buffer_bytes() const { return buffer_bytes_; }

 private:
  struct Job {
    size_t n;
    const Body* body;
    size_t next = 0;     // the first item that no thread has taken
    size_t running = 0;  // the number of items in progress
    Status status = {};
    std::condition_variable done = {};
  };

  explicit IoThreads(size_t buffer_bytes);
  void Work(const PageBuffer& buffer);
  Status RunHere(size_t n, const Body& body) const;

  const int pid_;
  const size_t buffer_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job*> jobs_;  // jobs with items that no thread has taken
  bool ending_ = false;
  std::vector<PageBuffer> buffers_;
  std::vector<std::thread> threads_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_IO_THREADS_H_
