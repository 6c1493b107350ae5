// The device caches of this process, by number: a slot directory for each device of a table, and
// the state of the step that it commits.
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

// Returns the width of a row of the p-th plane that training changes. The embedding is plane 0 and
// may have numbers of 16 bits; the others have floats.
inline size_t WidthOf(const TableConfig& table, const Plane& plane, size_t p) {
  return p == 0 ? static_cast<size_t>(table.dim) : plane.row_bytes / sizeof(float);
}

// A file next to a table's folder that exists while rows are newer on a device. It contains the
// step since which they are newer. If the file exists after this process has ended, these rows are
// lost. The caches of a table, one for each device, share the note. Thread-safe.
class NewerNote {
 public:
  // `table` is the path of the table's folder.
  explicit NewerNote(const std::string& table);

  // Records that a cache has newer rows since a step. The first cache writes the file, with its
  // step; the file stays until no cache has newer rows.
  Status Add(const void* cache, int64_t step);
  // Records that a cache has no newer rows.
  void Remove(const void* cache);

 private:
  const std::string path_;
  std::mutex mutex_;
  std::set<const void*> caches_;
};

// The cache of one table on one device: its slot directory, and the plan of a step until the step
// is committed.
class DeviceCache {
 public:
  // `table` is the path of the table's folder.
  DeviceCache(const SlotDirectory::Options& options, const std::string& table,
              std::shared_ptr<NewerNote> note);

  SlotDirectory& directory() { return directory_; }
  StagingQueue& queue() { return queue_; }
  // Checks that the device has the rows of the last committed step; call it before their use.
  // Between Commit and Moved the host and the directory have the step, but the device does not.
  // Waits a while for the step of another thread. FailedPrecondition, until Clear: Moved was not
  // called, so the op that moves the rows has failed, and the rows on the device are unknown.
  Status CheckMoved();
  // Begins a lookup: checks the same, and returns the ticket of the lookup.
  Result<uint64_t> BeginLookup();
  // Ends an attempt of a lookup, the first of which is 1. Returns 0 if the rows that were read from
  // its slots are those of its keys. Otherwise a step of another thread has moved rows meanwhile:
  // returns the number of the next attempt. FailedPrecondition: this was the last one.
  Result<int64_t> EndLookup(uint64_t ticket, int64_t attempt) const;
  // Begins a flush: checks the same, and returns the rows that are newer on the device.
  Result<SlotDirectory::Newer> FindNewer();
  void Moved(int64_t number);
  // Returns whether a step was committed whose rows on the device have not moved yet.
  bool moving();
  // Plans a step of unique keys.
  Result<SlotDirectory::Plan> MakePlan(const int64_t* keys, size_t n);
  // Commits the planned step. The host must be certain to have its rows, among them `written` rows
  // of victims. If this makes rows on the device newer, writes the note next to the table.
  Status Commit(int64_t number, int64_t step, size_t written);
  // Calls `write` with the positions of those rows of a flush that are still newer on the device,
  // and then records that the host has them. Returns their number. No step may be committed
  // meanwhile.
  Result<size_t> Flush(const SlotDirectory::Newer& newer,
                       const std::function<Status(const std::vector<uint32_t>& positions)>& write);
  // Drops all rows on the device.
  void Clear();

  std::atomic<uint64_t> looked_up{0};  // keys of forward passes
  std::atomic<uint64_t> missed{0};     // keys among them whose rows came from the host
  std::atomic<uint64_t> written{0};    // rows of victims
  std::atomic<uint64_t> flushed{0};    // rows
  std::atomic<uint64_t> pulled{0};     // rows that other devices looked up
  std::atomic<uint64_t> pushed{0};     // gradients that came from other devices

 private:
  // CheckMoved with mutex_ locked, so that no step is committed between the check and the unlock.
  Status CheckMoved(std::unique_lock<std::mutex>* lock);

  SlotDirectory directory_;
  StagingQueue queue_;
  const std::string table_;  // the table's name
  const std::shared_ptr<NewerNote> note_;
  std::mutex mutex_;  // protects the members below
  SlotDirectory::Plan plan_;
  std::vector<int64_t> keys_;
  std::condition_variable moved_;
  uint64_t moving_ = 0;  // the number of the plan whose rows have not moved yet; 0: none
  int64_t moving_step_ = 0;
  uint64_t given_up_ = 0;  // the last plan whose wait timed out
};

// Thread-safe.
class DeviceCaches {
 public:
  static DeviceCaches& Get();

  int64_t Create(const SlotDirectory::Options& options, const std::string& table);
  // Returns a cache. NotFound: it was removed.
  Result<std::shared_ptr<DeviceCache>> Find(int64_t number);
  // Returns the cache whose number is an input of a kernel.
  Result<std::shared_ptr<DeviceCache>> Of(const KernelContext& context, int input);
  void Remove(int64_t number);

  // The counters of all caches since the process began.
  struct Totals {
    uint64_t looked_up = 0, missed = 0;
  };
  Totals totals();

 private:
  DeviceCaches() = default;

  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<DeviceCache>> caches_;
  std::map<std::string, std::weak_ptr<NewerNote>> notes_;  // by table
  int64_t next_ = 1;
  Totals removed_;  // of caches that were removed
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_DEVICE_CACHES_H_
