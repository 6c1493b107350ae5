#include "core/exchange/node_ranks.h"

#include <utility>

namespace tsps {

Result<std::unique_ptr<NodeRanks>> NodeRanks::Open(const std::string& folder, int local_size) {
  auto ranks = std::make_unique<NodeRanks>();
  for (int r = 0; r < local_size; ++r) {
    TSPS_ASSIGN_OR_RETURN(auto file, RankFile::Open(folder, r, local_size));
    ranks->files_.push_back(std::move(file));
  }
  return ranks;
}

std::vector<RankState> NodeRanks::Look() const {
  std::vector<RankState> states;
  for (const auto& file : files_) {
    const ExchangeLive& live = file->live();
    RankState state;
    state.rank = static_cast<int64_t>(live.rank.load());
    state.pid = live.pid.load();
    state.step = live.step.load();
    state.alive = file->Alive();
    state.left = live.left.load(std::memory_order_acquire) != 0;
    if (live.failed.load(std::memory_order_acquire) != 0) state.failure = live.failure;
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace tsps
