// The caches of this process: a slot directory for each table that has rows on a device, by number.
#ifndef TFSPS_KERNELS_DEVICE_CACHES_H_
#define TFSPS_KERNELS_DEVICE_CACHES_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/cache/slot_directory.h"
#include "core/cache/staging_queue.h"
#include "core/table/planes.h"
#include "core/table/table_config.h"
#include "kernels/tensors.h"

namespace tsps {

// Numbers in a row of the p-th plane that training changes: those of the embedding, which comes
// first, may be of 16 bits, the others are floats.
inline size_t WidthOf(const TableConfig& table, const Plane& plane, size_t p) {
  return p == 0 ? static_cast<size_t>(table.dim) : plane.row_bytes / sizeof(float);
}

// The file beside a table that says since which step rows are newer on a device, as long as there
// are some: whoever finds it when this process is gone knows that they are lost. The caches of one
// table, one for each device, share it. Thread-safe.
class NewerNote {
 public:
  // `table`: the path of its folder.
  explicit NewerNote(const std::string& table);

  // Rows of a cache are newer, from a step on. The first one's step is what the file says until no
  // cache has such rows.
  Status Add(const void* cache, int64_t step);
  void Remove(const void* cache);

 private:
  const std::string path_;
  std::mutex mutex_;
  std::set<const void*> caches_;
};

// Of one table, and one device. Its directory decides; what a step has planned waits here until it
// is committed.
class DeviceCache {
 public:
  // `table`: the path of its folder.
  DeviceCache(const SlotDirectory::Options& options, const std::string& table,
              std::shared_ptr<NewerNote> note);

  SlotDirectory& directory() { return directory_; }
  StagingQueue& queue() { return queue_; }
  // After Commit the host and the directory have the step, and the rows on the device do not, until
  // Moved. Whoever is about to use them asks first; waits a while for another thread's step. If
  // Moved does not come, what should have moved them has failed, and what they are is not known:
  // FailedPrecondition, until Clear.
  Status CheckMoved();
  void Moved(int64_t number);
  // Whether a step has been made and its rows on the device have not moved.
  bool moving();
  // Plans a step of unique keys; its number.
  Result<SlotDirectory::Plan> MakePlan(const int64_t* keys, size_t n);
  // That the host has what the planned step leaves there is certain. `written`: rows of victims
  // among it. If rows on the device become newer with it, the note beside the table says so from
  // here on.
  Status Commit(int64_t number, int64_t step, size_t written);
  // Between two commits: writes those rows of a flush that are still newer here to the host, by
  // `write`, which is told their positions, and says that the host has them. Returns their number.
  Result<size_t> Flush(const SlotDirectory::Newer& found,
                       const std::function<Status(const std::vector<uint32_t>& positions)>& write);
  // What the device has does not count.
  void Clear();

  std::atomic<uint64_t> looked_up{0};  // keys, by forward passes
  std::atomic<uint64_t> missed{0};     // of them, those whose rows came from the host
  std::atomic<uint64_t> written{0};    // rows of victims
  std::atomic<uint64_t> flushed{0};    // rows
  std::atomic<uint64_t> pulled{0};     // rows that other devices looked up
  std::atomic<uint64_t> pushed{0};     // gradients that came from other devices

 private:
  SlotDirectory directory_;
  StagingQueue queue_;
  const std::string table_;  // its name
  const std::shared_ptr<NewerNote> note_;
  std::mutex mutex_;  // of what follows
  SlotDirectory::Plan plan_;
  std::vector<int64_t> keys_;
  std::condition_variable moved_;
  uint64_t moving_ = 0;  // number of the plan whose rows have not moved yet; 0: none
  int64_t moving_step_ = 0;
  uint64_t given_up_ = 0;  // the last one that was waited for in vain
};

// Thread-safe.
class DeviceCaches {
 public:
  static DeviceCaches& Get();

  int64_t Create(const SlotDirectory::Options& options, const std::string& table);
  // NotFound if it was removed.
  Result<std::shared_ptr<DeviceCache>> Find(int64_t number);
  // The one whose number is an input of a kernel.
  Result<std::shared_ptr<DeviceCache>> Of(const KernelContext& context, int input);
  void Remove(int64_t number);

 private:
  DeviceCaches() = default;

  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<DeviceCache>> caches_;
  std::map<std::string, std::weak_ptr<NewerNote>> notes_;  // by table
  int64_t next_ = 1;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_DEVICE_CACHES_H_
