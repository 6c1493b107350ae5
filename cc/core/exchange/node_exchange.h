// NodeExchange: the ranks of a node merge their sparse gradients in shared memory.
//
// Every rank contributes its gradients, grouped by ranges of a hash of their keys. The first ranks,
// or all, merge one range each of all ranks' contributions, in rank order, at the same time as the
// others. The leader, local rank 0, reads the results.
//
//   contribute ---- all have ---- merge own range ---- all have ---- leader reads ---- leader has
//        ^                                                                                |
//        +-------------------- next round, when the gradients are larger than the window --+
//
// In a job of one node that is all (Merge), and nothing is sent. In a job of several nodes, the
// sums of a range go to the ranks with the same range on the other nodes before the leader reads
// them: the caller calls Begin, then in every round Take, sends the sums, and calls Put, and at
// last Finish. Take may run ahead of Put, so that a rank merges while it sends. All ranks of the
// node must call the two in the same order.
//
// - All ranks make the same calls in the same order, with the same operation, tables and widths. A
//   rank that differs is an error on all of them.
// - An error is final: the ranks can no longer know what the others have done. Every rank gets it,
//   with the rank that it came from, and so does every later call.
// - If the leader refuses a step because of the merged gradients, that is a verdict
//   (node_verdicts.h) and not an error: all ranks have done the same, and the next step works.
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
#include "core/exchange/node_phases.h"
#include "core/exchange/node_verdicts.h"
#include "core/exchange/reduced_gradients.h"
#include "core/gradients/merge.h"

namespace tsps {

// Counts from the time when this process joined.
struct ExchangeCounters {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> rounds{0};
  std::atomic<uint64_t> rows_contributed{0};   // by this rank
  std::atomic<uint64_t> bytes_contributed{0};  // keys, gradients and counts of these rows
  std::atomic<uint64_t> rows_merged{0};        // in this rank's range
  std::atomic<uint64_t> waited_ns{0};          // time of waiting for other ranks
};

class NodeExchange {
 public:
  struct Options {
    int local_rank = 0;
    int local_size = 1;
    int64_t rank = 0;           // among all ranks, for messages
    int mergers = 0;            // number of ranks that merge, from local rank 0 on; 0: all
    size_t window = 32u << 20;  // shared memory for all ranks' contributions to a round
  };

  // Creates this rank's files in `folder`, which exists and belongs to this run alone.
  static Result<std::unique_ptr<NodeExchange>> Create(const std::string& folder,
                                                      const Options& options);
  ~NodeExchange();

  bool IsLeader() const { return phases_.local_rank() == 0; }
  bool Merges() const { return phases_.has_part(); }
  // Returns the bytes of a key, its gradient and, if keys have counts, its count.
  static size_t RowBytes(size_t dim, bool counted = false) {
    return sizeof(int64_t) + dim * sizeof(float) + (counted ? sizeof(int32_t) : 0);
  }
  // Returns the number of rounds that a rank needs for a contribution of `bytes`.
  static uint32_t RoundsFor(size_t bytes, size_t window, size_t local_size);

  // Called on the leader with every table's merged gradients, in which each key occurs once. They
  // are valid during the call. The order of keys is a function of the contributions alone.
  using Use = std::function<Status(std::vector<ReducedGradients>& tables)>;

  // Merges on the only node of a job. Returns when this rank is no longer needed for the call. All
  // ranks must have joined. Not thread-safe, nor are the next four methods.
  //
  // InvalidArgument: another rank calls something else. Unavailable: a rank died. DeadlineExceeded:
  // a rank did not come; the message says what is known of it. Aborted: a rank failed.
  Status Merge(const MergeCall& call, const std::vector<Contribution>& tables, Executor& executor,
               const Use& use);

  // The next four do the same in pieces, with the same `tables`. `rounds` is the same on all ranks,
  // and at least what RoundsFor returns on each; 0: the ranks of the node agree on it.
  Status Begin(const MergeCall& call, const std::vector<Contribution>& tables, uint32_t rounds,
               Executor& executor);
  // Contributes to a round. If this rank merges, sets sums[table] to the sums of its range, which
  // are valid until the next call.
  Status Take(uint32_t round, const std::vector<Contribution>& tables, Executor& executor,
              std::vector<GradientSet>* sums);
  // On a rank that merges: reduces [table][sender], and lets the leader read the result.
  Status Put(uint32_t round, const std::vector<TableSets>& tables, Executor& executor);
  Status Finish(const Use& use);
  // Runs work of the caller that belongs to a call. An error of it, too, ends the exchange for all
  // ranks.
  Status Part(const std::function<Status()>& part) { return phases_.Run(part); }

  // The agreement of the ranks on a step before it is made.
  NodeVerdicts& verdicts() { return verdicts_; }

  // Tells the other ranks which step this rank is making.
  void SetStep(int64_t step);
  // Tells the other ranks that this rank no longer needs them, so that its end is no death.
  void Leave();

  // Returns this rank's number among all ranks of the job.
  int64_t rank() const { return static_cast<int64_t>(own().live().rank.load()); }
  const ExchangeCounters& counters() const { return counters_; }

 private:
  NodeExchange(std::string folder, const Options& options, std::unique_ptr<RankFile> own);
  Status BeginCall(const MergeCall& call, const std::vector<Contribution>& tables, uint32_t rounds,
                   Executor& executor);
  Status Contribute(const std::vector<Contribution>& tables, uint32_t round, Executor& executor);
  // Waits for all ranks' contributions, and reads those to this rank's range.
  Status ReadRange(uint32_t round, std::vector<std::vector<GradientSet>>* sets);
  // Reduces [table][set], and writes the result where the leader reads it.
  Status MergeHere(const std::vector<std::vector<GradientSet>>& sets, Reduction reduction,
                   Executor& executor);
  void CountMerged(const std::vector<GradientSet>& sets);
  Status Publish(uint32_t round);
  Status CollectPublished(uint32_t round);

  uint64_t Contributed(uint32_t round) const {
    return phases_.Phase(rounds_ == 1 ? 2 : 3 + 2 * uint64_t{round});
  }
  uint64_t Merged(uint32_t round) const { return phases_.Phase(4 + 2 * uint64_t{round}); }
  RankFile& own() const { return phases_.own(); }
  Status AwaitDrained();

  const size_t window_;
  ExchangeCounters counters_;
  NodePhases phases_;
  NodeVerdicts verdicts_;

  // --- The call that has begun. ---
  uint32_t rounds_ = 0, taken_ = 0, put_ = 0;
  PartOrder order_;
  std::vector<ReducedGradients> reduced_;  // on the leader
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_EXCHANGE_H_
