#include "kernels/device_caches.h"

#include <utility>

namespace tsps {

Result<SlotDirectory::Plan> DeviceCache::MakePlan(const int64_t* keys, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TSPS_ASSIGN_OR_RETURN(plan_, directory_.MakePlan(keys, n));
  keys_.assign(keys, keys + n);
  return plan_;
}

Status DeviceCache::Commit(int64_t number, size_t rows_written) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<uint64_t>(number) != plan_.number) {
    return Error(Code::kInternal, "plan ", number, " of a device cache is committed, the last is ",
                 plan_.number);
  }
  TSPS_RETURN_IF_ERROR(directory_.Commit(plan_, keys_.data()));
  written += rows_written;
  return Status();
}

DeviceCaches& DeviceCaches::Get() {
  static auto* const caches = new DeviceCaches;  // kernels may run while the process exits
  return *caches;
}

int64_t DeviceCaches::Create(const SlotDirectory::Options& options) {
  auto cache = std::make_shared<DeviceCache>(options);
  const std::lock_guard<std::mutex> lock(mutex_);
  caches_[next_] = std::move(cache);
  return next_++;
}

Result<std::shared_ptr<DeviceCache>> DeviceCaches::Find(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = caches_.find(number);
  if (found == caches_.end()) {
    return Error(Code::kNotFound, "there is no device cache ", number,
                 " in this process: its layer is gone");
  }
  return found->second;
}

void DeviceCaches::Remove(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  caches_.erase(number);
}

}  // namespace tsps
