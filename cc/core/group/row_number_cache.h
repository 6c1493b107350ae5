// RowNumberCache: the row numbers that a lookup has found, and places of records on disk, for the
// step that updates the same keys in the same process. Without it every key of a step is probed
// twice.
//
// They are of one committed state, and used while that is the newest one.
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
  // Of one lookup: rows[i] is that of keys[i], kAbsentRow if it is absent.
  struct Found {
    uint64_t epoch = 0;  // of the state
    std::vector<int64_t> keys;
    std::vector<uint32_t> rows;
    std::vector<uint32_t> places;  // of the records of the absent keys; empty: not looked for
  };

  // Whether somebody will ask: the group's writer is in this process.
  void Enable(bool enabled);
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  // In place of what an earlier lookup in the table has found.
  void Put(int table, Found found);
  // What was found of these keys, but for the keys, if the last lookup was of them, in this order,
  // and of the state of `epoch`; else empty. It is forgotten.
  Found Take(int table, uint64_t epoch, const int64_t* keys, size_t n);

 private:
  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  std::map<int, Found> found_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_NUMBER_CACHE_H_
