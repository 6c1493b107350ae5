#include "kernels/waiters.h"

#include <thread>
#include <utility>

namespace tsps {

Waiters& Waiters::Get() {
  static Waiters* const waiters = new Waiters;
  return *waiters;
}

void Waiters::Run(std::function<void()> wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Starts the thread first, so that the wait is not left in the queue if no thread can start.
  if (idle_ <= pending_.size()) std::thread([this] { Work(); }).detach();
  pending_.push_back(std::move(wait));
  wake_.notify_one();
}

void Waiters::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    ++idle_;
    wake_.wait(lock, [this] { return !pending_.empty(); });
    --idle_;
    const std::function<void()> wait = std::move(pending_.front());
    pending_.pop_front();
    lock.unlock();
    wait();
    lock.lock();
  }
}

void RunOnWaiter(const Done& done, std::function<Status()> body) {
  RunOnWaiter(done, [body = std::move(body)](const ReportDone&) { return body(); });
}

void RunOnWaiter(const Done& done, std::function<Status(const ReportDone&)> body) {
  const Status started = NoThrow([&] {
    Waiters::Get().Run([done, body = std::move(body)] { RunHere(done, body); });
    return Status();
  });
  if (!started.ok()) done(started);
}

void RunHere(const Done& done, const std::function<Status(const ReportDone&)>& body) {
  bool reported = false;
  const ReportDone report = [&reported, &done] {
    reported = true;
    // On another thread, because TensorFlow continues the graph in the callback, and the body may
    // have locks.
    const Status started = NoThrow([&] {
      Waiters::Get().Run([done] { done(Status()); });
      return Status();
    });
    if (!started.ok()) done(Status());
  };
  const Status status = NoThrow([&] { return body(report); });
  if (!reported) done(status);
}

}  // namespace tsps
