#include "core/storage_reserver.h"

#include <unistd.h>

#include <algorithm>

#include "core/storage_budget.h"

namespace tsps {
namespace {

// The helper reserves ahead only where so many times as much is free. What it takes cannot be given
// back (files never shrink), and must not be what the next step needs for another file.
constexpr size_t kFreeFactor = 8;

}  // namespace

StorageReserver::StorageReserver() : pid_(getpid()) {}

StorageReserver::~StorageReserver() {
  if (getpid() != pid_) {  // a forked child: the thread was never its own
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status StorageReserver::Ensure(MappedFile& file, size_t used) {
  TSPS_RETURN_IF_ERROR(file.Reserve(used));
  const size_t ahead = std::clamp<size_t>(used / 4, 64u << 10, 64u << 20);
  if (file.size() - used >= ahead / 2) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  wanted_[&file] = std::min(used + ahead, file.range());
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
  return Status();
}

void StorageReserver::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !wanted_.empty(); });
    if (stop_) return;
    const auto next = wanted_.begin();
    MappedFile* const file = next->first;
    const size_t bytes = next->second;
    wanted_.erase(next);
    lock.unlock();
    const size_t more = bytes - std::min(bytes, file->size());
    if (CheckRoom(file->path(), kFreeFactor * more).ok()) static_cast<void>(file->Reserve(bytes));
    lock.lock();
  }
}

}  // namespace tsps
