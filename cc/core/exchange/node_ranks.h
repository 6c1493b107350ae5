// NodeRanks: how the ranks of a node are, as far as another process can tell.
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
  int64_t step = 0;  // that it is making, or has made last
  bool alive = false;
  bool left = false;    // it needs the others no more, and may end
  std::string failure;  // why it can no longer exchange gradients; empty: it can
};

class NodeRanks {
 public:
  // Of the ranks that have joined the exchange in `folder` (NodeExchange::Create): all must have.
  static Result<std::unique_ptr<NodeRanks>> Open(const std::string& folder, int local_size);

  // Lets the other ranks know that this one, whose process this is, makes progress: they wait for
  // it longer.
  Status ReportProgress(int local_rank);
  // By local rank. Some microseconds each.
  std::vector<RankState> Look() const;

 private:
  std::vector<std::unique_ptr<RankFile>> files_;
  std::mutex mutex_;
  bool is_writable_ = false;  // this rank's
};

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_NODE_RANKS_H_
