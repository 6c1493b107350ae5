// The caches of this process: a slot directory for each table that has rows on a device, by number.
#ifndef TFSPS_KERNELS_DEVICE_CACHES_H_
#define TFSPS_KERNELS_DEVICE_CACHES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/cache/slot_directory.h"
#include "core/cache/staging_queue.h"
#include "core/group/group.h"

namespace tsps {

// Of one table. Its directory decides; what a step has planned waits here until it is committed.
class DeviceCache {
 public:
  // `table`: the path of its folder.
  DeviceCache(const SlotDirectory::Options& options, const std::string& table);

  SlotDirectory& directory() { return directory_; }
  StagingQueue& queue() { return queue_; }
  // Plans a step of unique keys; its number.
  Result<SlotDirectory::Plan> MakePlan(const int64_t* keys, size_t n);
  // That the host has what the planned step leaves there is certain. `written`: rows of victims
  // among it. If rows on the device become newer with it, where none were, a file beside the table
  // says so from here on: whoever finds it when this process is gone knows that they are lost.
  Status Commit(int64_t number, int64_t step, size_t written);
  // The host has all rows, or what the device has does not count.
  void Flushed();
  void Clear();

  std::atomic<uint64_t> looked_up{0};  // keys, by forward passes
  std::atomic<uint64_t> missed{0};     // of them, those whose rows came from the host
  std::atomic<uint64_t> written{0};    // rows of victims
  std::atomic<uint64_t> flushed{0};    // rows

 private:
  void RemoveNote();

  SlotDirectory directory_;
  StagingQueue queue_;
  const std::string note_;  // path of that file
  std::mutex mutex_;        // of what follows
  SlotDirectory::Plan plan_;
  std::vector<int64_t> keys_;
};

// Thread-safe.
class DeviceCaches {
 public:
  static DeviceCaches& Get();

  int64_t Create(const SlotDirectory::Options& options, const std::string& table);
  // NotFound if it was removed.
  Result<std::shared_ptr<DeviceCache>> Find(int64_t number);
  void Remove(int64_t number);

 private:
  DeviceCaches() = default;

  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<DeviceCache>> caches_;
  int64_t next_ = 1;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_DEVICE_CACHES_H_
