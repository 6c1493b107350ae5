#include "core/tier/io_threads.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace tsps {

IoThreads::IoThreads(size_t buffer_bytes) : pid_(getpid()), buffer_bytes_(buffer_bytes) {}

Result<IoThreads*> IoThreads::OfProcess() {
  static std::mutex mutex;
  static IoThreads* threads = nullptr;  // never deleted: the threads end with the process
  const std::lock_guard<std::mutex> lock(mutex);
  if (threads == nullptr) {
    TSPS_ASSIGN_OR_RETURN(auto started, Start(32, size_t{1} << 20));
    threads = started.release();
  }
  return threads;
}

Result<std::unique_ptr<IoThreads>> IoThreads::Start(int threads, size_t buffer_bytes) {
  std::unique_ptr<IoThreads> pool(new IoThreads(buffer_bytes));
  for (int i = 0; i < threads; ++i) {
    TSPS_ASSIGN_OR_RETURN(PageBuffer buffer, PageBuffer::Make(buffer_bytes));
    pool->buffers_.push_back(std::move(buffer));
  }
  for (const PageBuffer& buffer : pool->buffers_) {
    try {
      pool->threads_.emplace_back([pool = pool.get(), &buffer] { pool->Work(buffer); });
    } catch (const std::system_error& error) {
      if (pool->threads_.empty()) {
        return Error(Code::kResourceExhausted,
                     "cannot start a thread to read records: ", error.what(),
                     ". Without such a thread no row can be read from disk. Raise the limit on "
                     "processes (ulimit -u), or stop other programs of this user");
      }
      break;  // fewer threads suffice
    }
  }
  return pool;
}

IoThreads::~IoThreads() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status IoThreads::Run(size_t n, bool urgent, const Body& body) {
  if (n == 0) return {};
  if (getpid() != pid_) return RunHere(n, body);
  Job job{n, &body};
  std::unique_lock<std::mutex> lock(mutex_);
  urgent ? jobs_.push_front(&job) : jobs_.push_back(&job);
  // Wakes no more threads than there are items: 32 waking threads take processors from training.
  if (n < threads_.size()) {
    for (size_t i = 0; i < n; ++i) wake_.notify_one();
  } else {
    wake_.notify_all();
  }
  job.done.wait(lock, [&job] { return job.next == job.n && job.running == 0; });
  return job.status;
}

Status IoThreads::RunHere(size_t n, const Body& body) const {
  TSPS_ASSIGN_OR_RETURN(const PageBuffer buffer, PageBuffer::Make(buffer_bytes_));
  for (size_t item = 0; item < n; ++item) TSPS_RETURN_IF_ERROR(body(item, buffer));
  return {};
}

void IoThreads::Work(const PageBuffer& buffer) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job& job = *jobs_.front();
    const size_t item = job.next++;
    ++job.running;
    if (job.next == job.n) jobs_.pop_front();
    lock.unlock();
    Status status = (*job.body)(item, buffer);
    lock.lock();
    --job.running;
    if (!status.ok()) {
      if (job.status.ok()) job.status = std::move(status);
      if (job.next < job.n) {
        job.next = job.n;
        jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
      }
    }
    if (job.next == job.n && job.running == 0) job.done.notify_one();
  }
}

}  // namespace tsps
