// NodeExchange: the ranks of a node merge their sparse gradients in shared memory.
//
// Every rank contributes its gradients, grouped by key ranges (of a hash); each merges one range of
// all ranks' contributions, in rank order, side by side with the others; the leader, local rank 0,
// reads what they have merged. Nothing is sent.
//
//   contribute ---- all have ---- merge own range ---- all have ---- leader reads ---- leader has
//        ^                                                                                |
//        +-------------------- next round, when the gradients are larger than the window --+
//
// Caveats, first:
// - All ranks make the same calls in the same order, with the same operation, tables and widths; a
//   rank that differs is an error on all of them.
// - An error is final: the ranks can no longer know what the others have done. Every rank gets it,
//   naming the rank it came from, and so does every later call.
#ifndef TFSPS_CORE_NODE_EXCHANGE_H_
#define TFSPS_CORE_NODE_EXCHANGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/executor.h"
#include "core/merge.h"
#include "core/rank_file.h"
#include "core/status.h"

namespace tsps {

// A rank's gradient of one table: unique keys.
struct Contribution {
  const int64_t* keys;  // int64[n]
  const float* rows;    // float[n, dim]
  size_t n;
  size_t dim;
};

// What the ranks of a node agree to do together.
struct MergeCall {
  std::string operation;  // names it, up to 127 characters; the same on all ranks
  int64_t step = 0;       // that it is part of; the same on all ranks
  Reduction reduction = Reduction::kSum;
  int64_t world_size = 1;                        // the divisor of kAverage
  double timeout_s = 0;                          // how long to wait for one rank
  const std::atomic<bool>* cancelled = nullptr;  // may be null; looked at ten times a second
};

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
  // Contributions of one round, all ranks together, take about this many bytes of shared memory,
  // and what is merged from them at most as many again.
  static constexpr size_t kWindowBytes = 32u << 20;

  // Makes this rank's files in `folder`, which exists and is this run's alone. `rank`: among all
  // ranks, for messages. `window`: kWindowBytes, except in tests.
  static Result<std::unique_ptr<NodeExchange>> Create(const std::string& folder, int local_rank,
                                                      int local_size, int64_t rank,
                                                      size_t window = kWindowBytes);
  ~NodeExchange();

  bool IsLeader() const { return local_rank_ == 0; }

  // One round's merged gradients: [table][range], ranges in order. Valid inside the call.
  using Merged = std::vector<std::vector<GradientSet>>;
  using Reader = std::function<Status(const Merged& merged, bool last)>;

  // Returns when this rank is no longer needed for the call. On the leader `read` gets every
  // round's merged gradients, `last` with the last; a key is in one round only. The order of keys
  // is a function of the contributions alone. All ranks must have joined. Not thread-safe.
  //
  // InvalidArgument: another rank calls something else. Unavailable: a rank died. DeadlineExceeded:
  // a rank did not come; the message says what is known of it. Aborted: a rank failed.
  Status Merge(const MergeCall& call, const std::vector<Contribution>& tables, Executor& executor,
               const Reader& read);

  // What the others read of this rank outside of merges: the step it is making, and that it needs
  // them no more, so that its end is no death.
  void SetStep(int64_t step);
  void Leave();

  const ExchangeCounters& counters() const { return counters_; }

 private:
  NodeExchange(std::string folder, int local_rank, int local_size, size_t window,
               std::unique_ptr<RankFile> own);
  Status OpenPeers();
  Status MergeRounds(const MergeCall& call, const std::vector<Contribution>& tables,
                     Executor& executor, const Reader& read);
  void Announce(const MergeCall& call, const std::vector<Contribution>& tables, uint32_t rounds);
  Result<uint32_t> AgreeOnRounds() const;
  // This rank's rows of one round, grouped by range.
  Status Contribute(const std::vector<Contribution>& tables, uint32_t round, uint32_t rounds,
                    Executor& executor);
  // This rank's range of one round.
  Status MergeRange(const MergeCall& call, Executor& executor);
  Status ReadMerged(const Reader& read, bool last) const;

  // Tells the others how far this rank is.
  void Advance(uint64_t phase);
  // Waits until all ranks are that far.
  Status AwaitAll(uint64_t phase, const MergeCall& call);
  Status Await(const std::atomic<uint64_t>& word, uint64_t target, const RankFile& peer,
               const MergeCall& call);
  static Status FailureOf(const RankFile& peer);
  Status Late(const RankFile& peer, const MergeCall& call) const;

  const std::string folder_;
  const size_t local_rank_, ranks_, window_;
  std::unique_ptr<RankFile> own_;
  std::vector<std::unique_ptr<RankFile>> peers_;  // by local rank; null for this one
  std::vector<const RankFile*> files_;            // by local rank, this one included
  uint64_t base_ = 0;                             // phase at the end of the last call
  Status broken_;
  ExchangeCounters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_NODE_EXCHANGE_H_
