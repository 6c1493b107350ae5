// RowNumberCache: keeps the row numbers, and places of records on disk, that a lookup has found,
// for the step that updates the same keys in the same process. Without it, every key of a step
// would be probed twice.
//
// They belong to one committed state and are used only while it is the newest one. Thread-safe.
#ifndef TFSPS_CORE_GROUP_ROW_NUMBER_CACHE_H_
#define TFSPS_CORE_GROUP_ROW_NUMBER_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tsps {

class RowNumberCache {
 public:
  // The result of one lookup: rows[i] is the row number of keys[i], kAbsentRow if it is absent.
  struct Found {
    uint64_t epoch = 0;  // of the committed state
    std::vector<int64_t> keys;
    std::vector<uint32_t> rows;
    std::vector<uint32_t> places;  // of the records of the absent keys; empty: not looked up
  };

  // Enables the cache while the group's writer is in this process.
  void Enable(bool enabled);
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // Keeps the result of a lookup, in place of that of an earlier lookup in the table.
  void Put(int table, Found found);
  // Returns the result for these keys, without the keys, if the last lookup had the same keys in
  // the same order and the state of `epoch`; otherwise an empty one. Removes the result from the
  // cache.
  Found Take(int table, uint64_t epoch, const int64_t* keys, size_t n);

 private:
  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  std::map<int, Found> found_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_NUMBER_CACHE_H_
