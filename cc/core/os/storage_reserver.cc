#include "core/os/storage_reserver.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/fault_point.h"
#include "core/os/storage_budget.h"

namespace tsps {
namespace {

// The helper reserves ahead only if this multiple of the bytes is free. Files never shrink, so it
// could not give back what the next step may need for another file.
constexpr size_t kFreeFactor = 8;
// If files have grown within the last kQuiet, a table is being filled. Filling needs the processor,
// and waits for pages that are being moved. So collapsing then takes a tenth of the time.
constexpr std::chrono::milliseconds kQuiet{200};
constexpr int kPauses = 9;  // between two pages, in units of the time that the last one took

}  // namespace

StorageReserver::StorageReserver() : pid_(getpid()), requests_(std::make_unique<Requests>()) {}

StorageReserver::~StorageReserver() {
  if (getpid() != pid_) {
    // In a forked child the thread does not exist, but the copy of the requests has it as a waiter,
    // and their destructor would wait for it. A thread of the child may have its pthread_t now.
    static_cast<void>(requests_.release());
    return;
  }
  {
    std::lock_guard<std::mutex> lock(requests_->mutex);
    requests_->stop = true;
  }
  requests_->changed.notify_all();
  if (requests_->thread.joinable()) requests_->thread.join();
}

Status StorageReserver::Ensure(MappedFile& file, size_t used) {
  TSPS_RETURN_IF_ERROR(file.Reserve(used));
  const size_t ahead = std::clamp<size_t>(used / 4, 64u << 10, 64u << 20);
  if (file.size() - used >= ahead / 2) return Status();
  std::lock_guard<std::mutex> lock(requests_->mutex);
  const size_t bytes = std::min(used + ahead, file.range());
  if (bytes > file.size()) requests_->wanted[&file] = {&file, bytes};
  requests_->collapsing.insert(&file);
  Notify();
  return Status();
}

void StorageReserver::Collapse(MappedFile& file) {
  if (!file.HasToCollapse()) return;
  std::lock_guard<std::mutex> lock(requests_->mutex);
  if (requests_->collapsing.insert(&file).second) Notify();
}

void StorageReserver::Notify() {
  try {
    if (!requests_->thread.joinable()) {
      if (TSPS_FAULT_FAILS("thread")) throw std::system_error(errno, std::generic_category());
      requests_->thread = std::thread([this] { Run(); });
    }
  } catch (const std::system_error&) {
    requests_->wanted.clear();
    requests_->collapsing.clear();
    requests_->discarded.clear();
  }
  requests_->changed.notify_all();
}

void StorageReserver::Discard(std::unique_ptr<MappedFile> file) {
  if (file == nullptr) return;
  std::lock_guard<std::mutex> lock(requests_->mutex);
  requests_->wanted.erase(file.get());
  requests_->collapsing.erase(file.get());
  requests_->discarded.push_back(std::move(file));
  Notify();
}

void StorageReserver::Cancel(const std::vector<const MappedFile*>& files) {
  std::unique_lock<std::mutex> lock(requests_->mutex);
  for (const MappedFile* file : files) {
    requests_->wanted.erase(file);
    requests_->collapsing.erase(const_cast<MappedFile*>(file));
  }
  requests_->changed.wait(lock, [&] {
    return std::find(files.begin(), files.end(), requests_->at_work) == files.end();
  });
}

void StorageReserver::Run() {
  Requests& requests = *requests_;
  std::unique_lock<std::mutex> lock(requests.mutex);
  while (true) {
    requests.changed.wait(lock, [&] {
      return requests.stop || !requests.wanted.empty() || !requests.discarded.empty() ||
             !requests.collapsing.empty();
    });
    if (requests.stop) return;
    if (!requests.discarded.empty()) {
      std::vector<std::unique_ptr<MappedFile>> discarded;
      discarded.swap(requests.discarded);
      lock.unlock();
      discarded.clear();
      lock.lock();
      continue;
    }
    if (requests.wanted.empty()) {
      const Clock::time_point begin = std::min(requests.grown + kQuiet, requests.next_collapse);
      if (Clock::now() < begin) {
        requests.changed.wait_until(lock, begin);
        continue;
      }
      MappedFile* const file = *requests.collapsing.begin();
      requests.at_work = file;
      lock.unlock();
      const Clock::time_point start = Clock::now();
      const bool more = file->CollapseNext();
      const Clock::time_point end = Clock::now();
      lock.lock();
      requests.next_collapse = end + kPauses * (end - start);
      requests.at_work = nullptr;
      if (!more) requests.collapsing.erase(file);
      requests.changed.notify_all();
      continue;
    }
    const auto next = requests.wanted.begin();
    const auto [file, bytes] = next->second;
    requests.at_work = file;
    requests.wanted.erase(next);
    lock.unlock();
    const size_t more = bytes - std::min(bytes, file->size());
    const bool grown =
        CheckRoom(file->path(), kFreeFactor * more).ok() && file->Reserve(bytes).ok();
    lock.lock();
    if (grown) requests.grown = Clock::now();
    requests.at_work = nullptr;
    requests.changed.notify_all();
  }
}

}  // namespace tsps
