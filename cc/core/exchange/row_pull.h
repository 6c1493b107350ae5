// RowPull: the ranks of a node fetch rows that other nodes have, each of them once.
//
//   ask ---- all have ---- dedupe own range ---- keys to their owners, rows back ---- answer
//                                                                                       |
//                                     collect: every rank copies the rows that it asked for
//
// Every rank asks for the keys of its batch; those that its own node has are left out. The first
// ranks, or all, take one range (of a hash) each of what all have asked for, and send it to the
// owners. Sending is the caller's. What comes back lies in shared memory until all have it.
//
// Caveats, first:
// - All ranks make the same calls in the same order. Pulls of several operations may be in flight
//   beside each other: each operation has a RowPull of its own.
// - An error is final, for all ranks of the node, and names the rank it came from.
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
#include "core/exchange/node_peers.h"

namespace tsps {

// Keys of one table that a rank asks for.
struct AskedKeys {
  const int64_t* keys;  // int64[n], unique
  size_t n;
  size_t dim;                     // floats per row
  const uint8_t* have = nullptr;  // a byte for each: not 0 if the rank has its row; null: none
};

// Where a rank wants the rows of one table, in the order of its keys.
struct RowTarget {
  float* rows;                 // float[n, dim]
  uint8_t* present = nullptr;  // set to 1 for each row that has come; null: all must come
};
using RowTargets = std::vector<RowTarget>;

class RowPull {
 public:
  struct Options {
    int local_rank = 0;
    int local_size = 1;
    int64_t rank = 0;    // among all ranks, for messages
    int mergers = 0;     // how many ranks send, from local rank 0 on; 0: all
    uint32_t nodes = 1;  // of the job
    uint32_t node = 0;   // this one
  };

  // Makes this rank's files in `folder`, which exists and is this operation's alone.
  static Result<std::unique_ptr<RowPull>> Create(const std::string& folder, const Options& options);

  uint32_t nodes() const { return nodes_; }
  bool Sends() const { return local_rank_ < senders_; }

  // What a rank that sends wants of one table: unique keys of other nodes, node by node, ascending
  // within each.
  struct Wanted {
    std::vector<int64_t> keys;
    std::vector<size_t> starts;  // [node], and the end
  };

  struct AskOptions {
    bool flag = false;  // told to the node's other ranks
    bool here = false;  // who sends is also told keys that this node has; the same on all ranks
  };
  // Begins. On a rank that sends, wanted() says what to fetch. Errors as of NodeExchange::Merge.
  // Not thread-safe, nor are the next two.
  Status Ask(const MergeCall& call, const std::vector<AskedKeys>& tables, const AskOptions& options,
             Executor& executor);
  // One per table, until Answer has returned.
  const std::vector<Wanted>& wanted() const { return wanted_; }
  // Of one table: keys of this node that its ranks have asked for, each rank's by itself. With
  // AskOptions.here, on a rank that sends, until Answer has returned.
  const std::vector<std::vector<int64_t>>& here() const { return here_; }
  // Whether a rank of the node has set AskOptions.flag.
  bool flag() const { return flag_; }
  // What was fetched of one table.
  struct Fetched {
    float* rows;       // float[wanted keys, dim]
    uint8_t* present;  // a byte for each: 0 if its row has not come
  };
  // On a rank that sends: `fill` writes what was fetched of each table, and returns what all nodes
  // agree on (agreed()).
  Status Answer(const std::function<Result<bool>(const std::vector<Fetched>& tables)>& fill);
  // Ends the call. Copies rows of other nodes to their places in `targets`, one per table.
  Status Collect(const RowTargets& targets, Executor& executor);
  // What `fill` has returned, the same on all ranks that collect.
  bool agreed() const { return agreed_; }
  // Runs what the caller does for a call besides: an error of it ends the pull for all ranks.
  Status Part(const std::function<Status()>& part);
  // Positions in a table's keys that this node has itself: Collect leaves their rows alone.
  const std::vector<uint32_t>& own_positions(size_t table) const { return asked_[table].own; }

 private:
  // What this rank asks for of one table.
  struct Asked {
    std::vector<int64_t> keys;     // of other nodes
    std::vector<uint32_t> places;  // in the caller's keys
    std::vector<uint32_t> own;     // positions of keys that are this node's
    size_t dim = 0;
  };

  RowPull(const std::string& folder, const Options& options, std::unique_ptr<RankFile> own);
  Status AwaitFiles(const MergeCall& call);
  Status Contribute(const MergeCall& call, const std::vector<AskedKeys>& tables,
                    Executor& executor);
  Status TakeRange(Executor& executor);
  Status CheckCall(const MergeCall& call, size_t tables) const;
  RankFile& own() const { return peers_.own(); }

  const size_t local_rank_, ranks_, senders_;
  const uint32_t nodes_, node_;
  std::atomic<uint64_t> waited_ns_{0};
  NodePeers peers_;
  uint64_t base_ = 0;  // phase at the end of the last call
  Status broken_;

  // Of the call that has begun.
  bool begun_ = false;
  MergeCall call_;
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
