// CounterPage: shows the counters of this process to other processes (core/group/rank_counters.h).
//
// Each counter stays where it is counted. Lookups and steps call Show, which copies all of them to
// the page, at most once in 20 ms.
#ifndef TFSPS_KERNELS_COUNTER_PAGE_H_
#define TFSPS_KERNELS_COUNTER_PAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/status.h"
#include "core/group/rank_counters.h"

namespace tsps {

class OpenGroup;

// What lookups and batches of this process count.
struct LookupCounters {
  std::atomic<uint64_t> lookups{0};
  std::atomic<uint64_t> ids{0};
  std::atomic<uint64_t> ids_trained{0};
  std::atomic<uint64_t> unique_ids{0};
  std::atomic<uint64_t> samples{0};

  static LookupCounters& OfProcess();
  void Add(size_t n_ids);
  // For a lookup that also found unique keys. Call Add, too.
  void AddTrained(size_t n_ids, size_t n_unique);
};

// Thread-safe.
class CounterPage {
 public:
  // Creates the page of this process, once. Until then, Show does nothing.
  Status Create(const std::string& group_path, int64_t rank, int64_t size, int64_t local_rank);
  // Stores the counters, unless they were stored a moment ago. Cheap enough for every lookup.
  void Show(OpenGroup& owner);
  // Stores the counters, also if they were stored a moment ago.
  void ShowNow(OpenGroup& owner);

 private:
  void Store(OpenGroup& owner);  // under mutex_

  std::atomic<bool> exists_{false};
  std::atomic<int64_t> shown_ns_{0};
  std::mutex mutex_;
  std::unique_ptr<RankCounters> page_;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_COUNTER_PAGE_H_
