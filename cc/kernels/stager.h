// Stager: reads the rows that coming batches need from disks, on a thread of its own.
//
// A dataset announces its batches, up to two passes ahead of training. What they have on disk is
// read a pass at a time: sorted by place, so that near rows take one access.
#ifndef TFSPS_KERNELS_STAGER_H_
#define TFSPS_KERNELS_STAGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "kernels/group_registry.h"

namespace tsps {

// Thread-safe. Of a process.
class Stager {
 public:
  static Stager& Get();

  struct Batch {
    int64_t dataset;  // which one
    int64_t index;  // in an iterator; 0 begins one, and what the one before it announced is dropped
    int64_t pass;   // batches that are read together; two passes are announced ahead of training
    TableHandle table;
    uint32_t nodes = 1, node = 0;
  };
  // A batch of a dataset will look these ids up, any of them any number of times. Of a table that
  // is spread over `nodes` nodes, those that `node` has count.
  Status Announce(const Batch& batch, const int64_t* ids, size_t n);

  // Other nodes will ask for these keys within two passes of so many batches: what they have on
  // disk is read as soon as the passes before it are. Waits for nothing.
  void AnnouncePass(const TableHandle& table, int64_t pass, std::vector<int64_t> keys);

  struct Counters {
    uint64_t batches = 0, passes = 0, keys = 0, dropped = 0, failed = 0, nanoseconds = 0;
  };
  Counters counters();

 private:
  struct Waiting {
    Batch batch;
    std::vector<int64_t> keys;  // that had no row in memory
  };
  static constexpr int64_t kOtherNodes = -1;  // in place of a dataset
  struct Pass {
    int64_t last;  // of its batches
    size_t keys;
  };
  // What one dataset announces of one table.
  struct Stream {
    int64_t dataset = 0;
    const OpenGroup* group = nullptr;  // to compare
    int table = 0;
    uint64_t first_step = 0;  // that was committed when the iterator began
    uint64_t announced_ns = 0;
    size_t room = 0;  // rows that may have been read and not been needed yet
    std::deque<Waiting> waiting;
    std::deque<Pass> staged;
  };

  Stager() = default;
  // Under mutex_.
  Stream& StreamOf(const Batch& batch);
  void DropFirst(Stream* stream);
  // Forgets what is past. Returns the batch that training has come to.
  int64_t Advance(Stream* stream);
  // How many batches are a pass that is to be read now; 0: none.
  size_t Ready(Stream* stream, uint64_t now);

  // Under mutex_.
  void Wake();
  void Run();
  // The next pass; waits for it.
  std::vector<Waiting> Next();
  void Stage(std::vector<Waiting> pass);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Stream> streams_;
  Counters counters_;
  bool started_ = false;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_STAGER_H_
