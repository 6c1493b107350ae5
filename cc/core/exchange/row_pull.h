// RowPull: the ranks of a node fetch rows of other nodes, each row once.
//
//   ask ---- all have ---- dedupe own range ---- keys to their owners, rows back ---- answer
//                                                                                       |
//                                     collect: every rank copies the rows that it asked for
//
// Every rank asks for the keys of its batch. Keys of its own node are left out. The first ranks, or
// all, take one range (of a hash) each of the keys that all ranks have asked for, and the caller
// sends them to their owners. The rows that come back lie in shared memory until all ranks have
// copied theirs.
//
// - All ranks make the same calls in the same order. Pulls of several operations may be in flight
// at
//   the same time: each operation has a RowPull.
// - An error is final, for all ranks of the node, and names the rank that it came from.
#ifndef TFSPS_CORE_EXCHANGE_ROW_PULL_H_
#define TFSPS_CORE_EXCHANGE_ROW_PULL_H_

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

namespace tsps {

// Keys of one table that a rank asks for.
struct AskedKeys {
  const int64_t* keys;  // int64[n], unique
  size_t n;
  size_t dim;                     // floats per row
  const uint8_t* have = nullptr;  // [n]: not 0 if the rank has the row already; null: it has none
};

// The memory for the rows of one table, in the order of the rank's keys.
struct RowTarget {
  float* rows;                 // float[n, dim]
  uint8_t* present = nullptr;  // [n]: set to 1 for each row that arrived; null: all must arrive
};
using RowTargets = std::vector<RowTarget>;

class RowPull {
 public:
  struct Options {
    int local_rank = 0;
    int local_size = 1;
    int64_t rank = 0;    // among all ranks, for messages
    int mergers = 0;     // number of ranks that send, from local rank 0 on; 0: all
    uint32_t nodes = 1;  // number of nodes of the job
    uint32_t node = 0;   // number of this node
  };

  // Creates this rank's files in `folder`, which exists and belongs to this operation alone.
  static Result<std::unique_ptr<RowPull>> Create(const std::string& folder, const Options& options);

  uint32_t nodes() const { return nodes_; }
  bool Sends() const { return phases_.has_part(); }

  // The keys of one table that a rank requests from other nodes: unique, node by node, ascending
  // within each node.
  struct Wanted {
    std::vector<int64_t> keys;
    std::vector<size_t> starts;  // [node], and the end
  };

  struct AskOptions {
    bool flag = false;  // shown to the node's other ranks
    // Whether ranks that send also get the keys of this node; the same on all ranks.
    bool here = false;
  };
  // Begins a call. On a rank that sends, wanted() has the keys to fetch. The errors are those of
  // NodeExchange::Merge. Not thread-safe, nor are the next two methods.
  Status Ask(const MergeCall& call, const std::vector<AskedKeys>& tables, const AskOptions& options,
             Executor& executor);
  // [table]. Valid until Answer has returned.
  const std::vector<Wanted>& wanted() const { return wanted_; }
  // [table]: the keys of this node that its ranks have asked for, one rank's after another's. With
  // AskOptions.here, on a rank that sends. Valid until Answer has returned.
  const std::vector<std::vector<int64_t>>& here() const { return here_; }
  // Whether a rank of the node has set AskOptions.flag.
  bool flag() const { return flag_; }
  // The memory for the rows of one table that were fetched.
  struct Fetched {
    float* rows;       // float[wanted keys, dim]
    uint8_t* present;  // [wanted keys]: 0 if the row did not arrive
  };
  // On a rank that sends: `fill` writes the rows of each table, and returns a value on which all
  // nodes agree (agreed()).
  Status Answer(const std::function<Result<bool>(const std::vector<Fetched>& tables)>& fill);
  // Ends the call. Copies rows of other nodes to their places in `targets`, one per table.
  Status Collect(const RowTargets& targets, Executor& executor);
  // Returns what `fill` has returned, which is the same on all ranks that collect.
  bool agreed() const { return agreed_; }
  // Runs work of the caller that belongs to a call. An error of it ends the pull for all ranks.
  Status Part(const std::function<Status()>& part) { return phases_.Run(part); }
  // Returns the positions, in a table's keys, of keys of this node. Collect leaves their rows
  // alone.
  const std::vector<uint32_t>& own_positions(size_t table) const { return asked_[table].own; }

 private:
  // The keys of one table that this rank asks for.
  struct Asked {
    std::vector<int64_t> keys;     // keys of other nodes
    std::vector<uint32_t> places;  // positions of `keys` in the caller's keys
    std::vector<uint32_t> own;     // positions of this node's keys in the caller's
    size_t dim = 0;
  };

  RowPull(const std::string& folder, const Options& options, std::unique_ptr<RankFile> own);
  Status AwaitFiles(const MergeCall& call);
  Status Contribute(const std::vector<AskedKeys>& tables, Executor& executor);
  Status TakeRange(Executor& executor);
  RankFile& own() const { return phases_.own(); }

  const uint32_t nodes_, node_;
  std::atomic<uint64_t> waited_ns_{0};
  NodePhases phases_;

  // --- The call that has begun. ---
  std::vector<Asked> asked_;
  PartOrder order_;
  std::vector<Wanted> wanted_;
  std::vector<std::vector<int64_t>> here_;
  AskOptions options_;
  bool flag_ = false, agreed_ = false;
  std::vector<std::vector<std::vector<uint32_t>>> positions_;  // [table][rank]: in wanted keys
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_ROW_PULL_H_
