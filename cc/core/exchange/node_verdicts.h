// NodeVerdicts: the ranks of a node agree on whether a step is made.
//
//   every rank   PostStatement    a digest of what must be equal, and its objection, if it has one
//   the leader   AwaitStatements, then PostVerdict
//   the others   AwaitVerdict
//
// A statement says that its rank has the verdict on the step before, and a rank awaits a verdict
// only after its statement: so each rank file has one place for either.
#ifndef TFSPS_CORE_EXCHANGE_NODE_VERDICTS_H_
#define TFSPS_CORE_EXCHANGE_NODE_VERDICTS_H_

#include <atomic>
#include <cstdint>

#include "core/base/status.h"
#include "core/exchange/merge_call.h"
#include "core/exchange/node_peers.h"

namespace tsps {

// FailedPrecondition: ranks have different digests. Who compares them does not know what they are
// of; the ranks then tell each other.
Status RanksDiffer();
// An objection of a rank, for the others.
Status OfRank(int64_t rank, const Status& objection);

class NodeVerdicts {
 public:
  // `peers` must outlive this.
  explicit NodeVerdicts(NodePeers& peers);

  // What a rank says of a step before the leader decides on it, once for every verdict: a digest of
  // what must be equal on all ranks, and why the rank cannot make the step (OK: it can). Nothing
  // waits for it but AwaitStatements.
  void PostStatement(int64_t step, uint64_t digest, const Status& objection);
  // The leader, which has posted its own: sets *agreed to the first objection, naming its rank, or
  // to RanksDiffer() if digests differ. Returns an error, as Merge does, when a rank does not come.
  // Thread-safe, beside a merge too.
  Status AwaitStatements(const MergeCall& call, Status* agreed);
  // The leader says whether the step that it prepared can be made.
  void PostVerdict(int64_t step, const Status& verdict);
  // Other ranks: sets *verdict to the next one of the leader's, which must be of call.step. Returns
  // an error, as Merge does, when there will be none. Thread-safe, beside a merge too.
  Status AwaitVerdict(const MergeCall& call, Status* verdict);

 private:
  NodePeers& peers_;
  std::atomic<uint64_t> verdicts_{0};    // posted, or awaited, by this rank
  std::atomic<uint64_t> statements_{0};  // posted by this rank
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_VERDICTS_H_
