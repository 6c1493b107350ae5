// Stager: reads the rows that coming batches need from disks, on a thread of its own.
#ifndef TFSPS_KERNELS_STAGER_H_
#define TFSPS_KERNELS_STAGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "kernels/group_registry.h"

namespace tsps {

// Thread-safe. Of a process.
class Stager {
 public:
  static Stager& Get();

  // A batch of a dataset will look these keys up.
  struct Batch {
    int64_t dataset;  // which one
    int64_t index;  // in an iterator; 0 begins one, and what the one before it announced is dropped
    int64_t pass;   // batches that are read together; two passes are announced ahead of training
    TableHandle table;
    std::vector<int64_t> keys;
  };
  // Drops batches of the same dataset and table that must be past: two passes before it.
  void Announce(Batch batch);

  struct Counters {
    uint64_t batches = 0, passes = 0, keys = 0, dropped = 0, failed = 0, nanoseconds = 0;
  };
  Counters counters();

 private:
  Stager() = default;
  // Those that wait, of one dataset and table, but for the last `keep`. Under mutex_.
  void Drop(const Batch& like, size_t keep);
  void Run();
  // The batches of the next pass, of one table; waits for them.
  std::vector<Batch> Next();
  void Stage(const std::vector<Batch>& batches);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> waiting_;
  Counters counters_;
  bool started_ = false;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_STAGER_H_
