#include "core/os/exit_deadline.h"

#include <unistd.h>

#include <utility>

namespace tsps {

ExitDeadline::ExitDeadline(double seconds, std::string message)
    : message_(std::move(message) + "\n") {
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(seconds));
  thread_ = std::thread([this, deadline] { Watch(deadline); });
}

void ExitDeadline::Cancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ExitDeadline::Watch(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (wake_.wait_until(lock, deadline, [this] { return cancelled_; })) return;
  for (size_t done = 0; done < message_.size();) {
    const ssize_t written = write(STDERR_FILENO, message_.data() + done, message_.size() - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  _exit(1);
}

}  // namespace tsps
