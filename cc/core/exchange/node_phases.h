// NodePhases: the calls that the ranks of a node make together, each of which runs through phases.
//
// A rank announces a call and its contributions, and raises its phase. Others wait for the phase,
// and read the contributions. An error ends all calls, on all ranks: the ranks can no longer know
// what the others have done.
#ifndef TFSPS_CORE_EXCHANGE_NODE_PHASES_H_
#define TFSPS_CORE_EXCHANGE_NODE_PHASES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/exchange/exchange_areas.h"
#include "core/exchange/merge_call.h"
#include "core/exchange/node_peers.h"

namespace tsps {

// Not thread-safe, except peers().
class NodePhases {
 public:
  struct Ranks {
    int local_rank = 0;
    int local_size = 1;
    int n_parts = 0;  // number of ranks that read a part of all contributions; 0: all ranks
  };
  // Time spent waiting is added to `waited_ns`, which must outlive this.
  NodePhases(std::string folder, const Ranks& ranks, std::unique_ptr<RankFile> own,
             std::atomic<uint64_t>& waited_ns);

  NodePeers& peers() { return peers_; }
  const NodePeers& peers() const { return peers_; }
  RankFile& own() const { return peers_.own(); }
  size_t local_rank() const { return local_rank_; }
  size_t n_ranks() const { return peers_.all().size(); }
  // The number of parts. The ranks from local rank 0 on have one each.
  size_t n_parts() const { return n_parts_; }
  bool has_part() const { return local_rank_ < n_parts_; }
  bool begun() const { return begun_; }
  const MergeCall& call() const { return call_; }
  // Returns the n-th phase of this call.
  uint64_t Phase(uint64_t n) const { return base_ + n; }

  // Runs work of a call. An error of it, or an exception, is reported to all ranks, and every later
  // call returns it. FailedPrecondition: in a forked child.
  Status Run(const std::function<Status()>& work);
  // Checks a call before it begins. FailedPrecondition: the last one has not ended.
  // InvalidArgument: too many tables, or the operation's name is too long.
  Status CheckCall(const MergeCall& call, size_t n_tables) const;
  // Begins a call: waits until all ranks have ended the last one, and announces it. `dims`: of the
  // tables; `rounds`: the number that this rank needs.
  Status Begin(const MergeCall& call, const std::vector<size_t>& dims, uint32_t reduction,
               uint32_t rounds);
  // Writes n_parts() parts of contributions, from part `first` of `order` on, and raises the phase.
  Status Contribute(const PartOrder& order, const std::vector<Contribution>& contributions,
                    uint32_t first, uint64_t phase, Executor& executor);
  // Sets (*sets)[contribution][rank] to what all ranks have contributed to this rank's part.
  // `dims`: of the contributions.
  Status ReadPart(const uint32_t* dims, std::vector<std::vector<GradientSet>>* sets) const;
  // Raises this rank's phase.
  void Reach(uint64_t phase) { Advance(own().live().phase, phase); }
  // Waits until all ranks have reached a phase.
  Status AwaitAll(uint64_t phase) { return peers_.AwaitAll(phase, call_); }
  // Ends the call, whose last phase is `phase`.
  void End(uint64_t phase);

 private:
  const size_t local_rank_, n_parts_;
  NodePeers peers_;
  uint64_t base_ = 0;  // the last phase of the last call
  Status broken_;
  bool begun_ = false;
  MergeCall call_;  // the last one that began
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_PHASES_H_
