#include "core/group/row_number_cache.h"

#include <algorithm>
#include <utility>

namespace tsps {

void RowNumberCache::Enable(bool enabled) {
  std::map<int, Found> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  enabled_.store(enabled, std::memory_order_relaxed);
  dropped.swap(found_);
}

void RowNumberCache::Put(int table, Found found) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (enabled()) found_[table] = std::move(found);
}

RowNumberCache::Found RowNumberCache::Take(int table, uint64_t epoch, const int64_t* keys,
                                           size_t n) {
  Found found;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = found_.find(table);
    if (entry == found_.end()) return {};
    found = std::move(entry->second);
    found_.erase(entry);
  }
  if (found.epoch != epoch || found.keys.size() != n) return {};
  if (!std::equal(keys, keys + n, found.keys.data())) return {};
  found.keys.clear();
  return found;
}

}  // namespace tsps
