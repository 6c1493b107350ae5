// NodeExchange: the ranks of a node merge their sparse gradients in shared memory.
//
// Every rank contributes its gradients, grouped by key ranges (of a hash); the first ranks, or all,
// merge one range each of all ranks' contributions, in rank order, side by side with the others;
// the leader, local rank 0, reads what they have merged.
//
//   contribute ---- all have ---- merge own range ---- all have ---- leader reads ---- leader has
//        ^                                                                                |
//        +-------------------- next round, when the gradients are larger than the window --+
//
// In a job of one node that is all (Merge), and nothing is sent. In a job of several, what a rank
// has merged of its range goes to the ranks with the same range on the other nodes before the
// leader reads it: Begin, then in every round Take, the sending, Put, and at last Finish. Sending
// is the caller's. Take may run ahead of Put, so that a rank merges while it sends; by as much, and
// in the same order of the two, on all ranks of the node.
//
// Caveats, first:
// - All ranks make the same calls in the same order, with the same operation, tables and widths; a
//   rank that differs is an error on all of them.
// - An error is final: the ranks can no longer know what the others have done. Every rank gets it,
//   naming the rank it came from, and so does every later call.
// - That the leader refuses a step for what came out of a merge is no error of the exchange but its
//   verdict (node_verdicts.h): all have done the same, and the next step works.
#ifndef TFSPS_CORE_EXCHANGE_NODE_EXCHANGE_H_
#define TFSPS_CORE_EXCHANGE_NODE_EXCHANGE_H_

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
#include "core/exchange/node_verdicts.h"
#include "core/exchange/reduced_gradients.h"
#include "core/gradients/merge.h"

namespace tsps {

// Since this process joined.
struct ExchangeCounters {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> rounds{0};
  std::atomic<uint64_t> rows_contributed{0};   // by this rank
  std::atomic<uint64_t> bytes_contributed{0};  // of their keys and gradients
  std::atomic<uint64_t> rows_merged{0};        // by this rank: those of its range
  std::atomic<uint64_t> waited_ns{0};          // for other ranks
};

class NodeExchange {
 public:
  struct Options {
    int local_rank = 0;
    int local_size = 1;
    int64_t rank = 0;  // among all ranks, for messages
    int mergers = 0;   // how many ranks merge, from local rank 0 on; 0: all
    size_t window =
        32u << 20;  // shared memory for the contributions of a round, all ranks together
  };

  // Makes this rank's files in `folder`, which exists and is this run's alone.
  static Result<std::unique_ptr<NodeExchange>> Create(const std::string& folder,
                                                      const Options& options);
  ~NodeExchange();

  bool IsLeader() const { return local_rank_ == 0; }
  bool Merges() const { return local_rank_ < mergers_; }
  // Bytes of a key and its gradient, and how many rounds a rank needs for so many.
  static size_t RowBytes(size_t dim) { return sizeof(int64_t) + dim * sizeof(float); }
  static uint32_t RoundsFor(size_t bytes, size_t window, size_t local_size);

  // What the leader does with every table's gradients; a key is once in them. Valid inside the
  // call. The order of keys is a function of the contributions alone.
  using Use = std::function<Status(std::vector<ReducedGradients>& tables)>;

  // On the only node of a job. Returns when this rank is no longer needed for the call. All ranks
  // must have joined. Not thread-safe, nor are the next four.
  //
  // InvalidArgument: another rank calls something else. Unavailable: a rank died. DeadlineExceeded:
  // a rank did not come; the message says what is known of it. Aborted: a rank failed.
  Status Merge(const MergeCall& call, const std::vector<Contribution>& tables, Executor& executor,
               const Use& use);

  // The same in pieces. `tables` are those of Begin. `rounds`: the same on all ranks, at least what
  // RoundsFor says on each; 0: the ranks of the node agree on it.
  Status Begin(const MergeCall& call, const std::vector<Contribution>& tables, uint32_t rounds,
               Executor& executor);
  // Contributes to a round; if this rank merges, sets sums[table] to the sums of its range, valid
  // until the next call.
  Status Take(uint32_t round, const std::vector<Contribution>& tables, Executor& executor,
              std::vector<GradientSet>* sums);
  // On a rank that merges: reduces [table][sender] and lets the leader read it.
  Status Put(uint32_t round, const std::vector<TableSets>& tables, Executor& executor);
  // `use`: called on the leader.
  Status Finish(const Use& use);
  // Runs what the caller does for a call besides, inside or around these: an error of it, too, ends
  // the exchange for all ranks.
  Status Part(const std::function<Status()>& part);

  // What the ranks say of a step before it is made.
  NodeVerdicts& verdicts() { return verdicts_; }

  // What the others read of this rank outside of merges: the step it is making, and that it needs
  // them no more, so that its end is no death.
  void SetStep(int64_t step);
  void Leave();

  // Among all ranks of the job.
  int64_t rank() const { return static_cast<int64_t>(own().live().rank.load()); }
  const ExchangeCounters& counters() const { return counters_; }

 private:
  NodeExchange(std::string folder, const Options& options, std::unique_ptr<RankFile> own);
  Status BeginCall(const MergeCall& call, const std::vector<Contribution>& tables, uint32_t rounds,
                   Executor& executor);
  void Announce(const std::vector<Contribution>& tables, uint32_t rounds);
  Status Contribute(const std::vector<Contribution>& tables, uint32_t round, Executor& executor);
  // All ranks' contributions to this rank's range, once they are there.
  Status ReadRange(uint32_t round, std::vector<std::vector<GradientSet>>* sets);
  // Lays what becomes of [table][set] where the leader reads it.
  Status MergeHere(const std::vector<std::vector<GradientSet>>& sets, Reduction reduction,
                   Executor& executor);
  void CountMerged(const std::vector<GradientSet>& sets);
  Status Publish(uint32_t round);
  Status CollectPublished(uint32_t round);

  uint64_t Contributed(uint32_t round) const {
    return base_ + (rounds_ == 1 ? 2 : 3 + 2 * uint64_t{round});
  }
  uint64_t Merged(uint32_t round) const { return base_ + 4 + 2 * uint64_t{round}; }
  RankFile& own() const { return peers_.own(); }
  Status AwaitDrained();

  const size_t local_rank_, ranks_, mergers_, window_;
  ExchangeCounters counters_;
  NodePeers peers_;
  NodeVerdicts verdicts_;
  uint64_t base_ = 0;  // phase at the end of the last call
  Status broken_;

  // Of the call that has begun.
  bool begun_ = false;
  MergeCall call_;
  uint32_t rounds_ = 0, taken_ = 0, put_ = 0;
  PartOrder order_;
  std::vector<ReducedGradients> reduced_;  // on the leader
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_EXCHANGE_H_
