// Stager: reads the rows that coming batches need from disk, on a thread of its own.
//
// A dataset announces its batches, up to two passes ahead of training. The rows of a pass that are
// on disk are read together, sorted by place, so that near rows take one access.
#ifndef TFSPS_KERNELS_STAGER_H_
#define TFSPS_KERNELS_STAGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "core/base/announced_batches.h"
#include "core/base/status.h"
#include "kernels/group_registry.h"

namespace tsps {

// The stager of the process. Thread-safe.
class Stager {
 public:
  static Stager& Get();

  struct Batch {
    int64_t dataset;
    int64_t index;  // in an iterator; 0 begins one, and drops the batches of the one before it
    int64_t pass;   // number of batches that are read together
    TableHandle table;
    uint32_t nodes = 1, node = 0;
  };
  // Announces that a batch of a dataset will look up these ids, each of them any number of times.
  // If the table is spread over `nodes` nodes, only ids that `node` owns count.
  Status Announce(const Batch& batch, const int64_t* ids, size_t n);

  // Announces that other nodes will ask for these keys within two passes of `pass` batches. Their
  // rows on disk are read as soon as the passes before them are. Waits for nothing.
  void AnnouncePass(const TableHandle& table, int64_t pass, std::vector<int64_t> keys);

  struct Counters {
    uint64_t batches = 0, passes = 0, keys = 0, dropped = 0, failed = 0, nanoseconds = 0;
  };
  Counters counters();

 private:
  struct Waiting {
    Batch batch;
    std::vector<int64_t> keys;  // keys that had no row in memory
  };
  static constexpr int64_t kOtherNodes = -1;  // in place of a dataset
  static constexpr size_t kMostStreams = 64;  // remembered without a batch
  struct Pass {
    int64_t last;  // index of its last batch
    size_t keys;
  };
  // The batches that one dataset announces for one table.
  struct Stream {
    bool IsOf(const Batch& batch) const;

    int64_t dataset = 0;
    const OpenGroup* group = nullptr;  // only compared
    int table = 0;
    uint64_t first_step = 0;  // the step that was committed when the iterator began
    uint64_t announced_ns = 0;
    size_t capacity = 0;  // number of rows that may be read before training uses them
    AnnouncedBatches<Waiting> batches = {};
    std::deque<Pass> staged = {};  // passes that were read and are not used yet
  };

  Stager() : streams_(kMostStreams) {}
  // All of these are called with mutex_ locked.
  Stream& StreamOf(const Batch& batch);
  // Forgets batches that training has passed. Returns the index of the batch that it has reached.
  int64_t Advance(Stream& stream);
  // Returns the first batches of a stream that can be read together.
  struct Candidate {
    size_t n = 0;
    size_t keys = 0;
    bool complete = false;  // no further batch would be added
  };
  static Candidate FirstPass(const Stream& stream);
  // Returns the number of batches that make up a pass to be read now; 0: none.
  size_t Ready(Stream& stream, uint64_t now);
  std::vector<Waiting> TakePass(Stream& stream, size_t n);
  void Wake();

  void Run();
  // Waits for the next pass, and returns it.
  std::vector<Waiting> Next();
  void Stage(std::vector<Waiting> pass);

  std::mutex mutex_;
  std::condition_variable changed_;
  AnnouncedStreams<Stream> streams_;
  Counters counters_;
  bool started_ = false;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_STAGER_H_
