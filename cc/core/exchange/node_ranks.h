// NodeRanks: the states of a node's ranks, as another process sees them.
#ifndef TFSPS_CORE_EXCHANGE_NODE_RANKS_H_
#define TFSPS_CORE_EXCHANGE_NODE_RANKS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/exchange/rank_file.h"

namespace tsps {

struct RankState {
  int64_t rank = 0;  // among all ranks of the job
  int64_t pid = 0;   // as the process sees itself
  int64_t step = 0;  // the step that it is making, or has made last
  bool alive = false;
  bool left = false;    // it no longer needs the others, and may end
  std::string failure;  // why it can no longer exchange gradients; empty: it can
};

class NodeRanks {
 public:
  // Opens the files of the ranks in `folder`. All ranks must have joined (NodeExchange::Create).
  static Result<std::unique_ptr<NodeRanks>> Open(const std::string& folder, int local_size);

  // Reports progress of this process's rank, so that the other ranks wait for it longer.
  Status ReportProgress(int local_rank);
  // Returns the states by local rank. Takes some microseconds per rank.
  std::vector<RankState> Look() const;

 private:
  std::vector<std::unique_ptr<RankFile>> files_;
  std::mutex mutex_;
  bool is_writable_ = false;  // this rank's file
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_RANKS_H_
