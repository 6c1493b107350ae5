// IoThreads: plain threads that wait for a disk, so that many reads are under way at once.
//
// They have nothing to do with the executor's threads, which compute: a thread in a read takes no
// processor. Jobs of several callers share them; an urgent one's items come before all others'.
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
  // Each thread has a buffer of `buffer_bytes` for what it reads.
  static Result<std::unique_ptr<IoThreads>> Start(int threads, size_t buffer_bytes);
  // Those that all stores of the process share, started for the first one: 32, with buffers of
  // 1 MiB, of which they use as much as they read at once.
  static Result<IoThreads*> OfProcess();
  ~IoThreads();  // after all jobs
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  using Body = std::function<Status(size_t item, const PageBuffer& buffer)>;
  // Calls body(item) for 0 to n - 1 on the threads and returns when all are done, with the first
  // error; after one the other items are left out. Thread-safe. In a forked child, which has none
  // of its parent's threads, one after another.
  Status Run(size_t n, bool urgent, const Body& body);

  int threads() const { return static_cast<int>(threads_.size()); }
  size_t buffer_bytes() const { return buffer_bytes_; }

 private:
  struct Job {
    size_t n;
    const Body* body;
    size_t next = 0;     // the first item that nobody has taken
    size_t running = 0;  // items that somebody is at
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
  std::deque<Job*> jobs_;  // that have items nobody has taken
  bool ending_ = false;
  std::vector<PageBuffer> buffers_;
  std::vector<std::thread> threads_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_IO_THREADS_H_
