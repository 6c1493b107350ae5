// NodeVerdicts: the ranks of a node agree on whether a step is made.
//
//   every rank   PostStatement    a digest of what must be equal, and its objection, if it has one
//   the leader   AwaitStatements, then PostVerdict
//   the others   AwaitVerdict
//
// A rank posts a statement when it has the verdict on the step before, and awaits a verdict only
// after its statement. So each rank file needs space for only one of either.
#ifndef TFSPS_CORE_EXCHANGE_NODE_VERDICTS_H_
#define TFSPS_CORE_EXCHANGE_NODE_VERDICTS_H_

#include <atomic>
#include <cstdint>

#include "core/base/status.h"
#include "core/exchange/merge_call.h"
#include "core/exchange/node_peers.h"

namespace tsps {

// Returns FailedPrecondition, for ranks with different digests. The ranks then find out together
// what differs.
Status RanksDiffer();
// Returns an objection of a rank, for the others.
Status OfRank(int64_t rank, const Status& objection);

class NodeVerdicts {
 public:
  // `peers` must outlive this.
  explicit NodeVerdicts(NodePeers& peers);

  // Posts what a rank has to say of a step before the leader decides on it, once for every verdict:
  // a digest of what must be equal on all ranks, and why the rank cannot make the step (OK: it
  // can). Only AwaitStatements waits for it.
  void PostStatement(int64_t step, uint64_t digest, const Status& objection);
  // Called by the leader, which has posted its own statement. Sets *agreed to the first objection,
  // with its rank, or to RanksDiffer() if digests differ. Returns an error, as Merge does, if a
  // rank does not arrive. Thread-safe, also during a merge.
  Status AwaitStatements(const MergeCall& call, Status* agreed);
  // Called by the leader: posts whether the step that it prepared can be made.
  void PostVerdict(int64_t step, const Status& verdict);
  // Called by other ranks: sets *verdict to the leader's next verdict, which must be on call.step.
  // Returns an error, as Merge does, if there will be none. Thread-safe, also during a merge.
  Status AwaitVerdict(const MergeCall& call, Status* verdict);

 private:
  NodePeers& peers_;
  std::atomic<uint64_t> verdicts_{0};    // number that this rank has posted, or awaited
  std::atomic<uint64_t> statements_{0};  // number that this rank has posted
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_VERDICTS_H_
