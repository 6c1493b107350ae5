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

Status NodeRanks::ReportProgress(int local_rank) {
  RankFile& own = *files_[static_cast<size_t>(local_rank)];
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_writable_) {
    TSPS_RETURN_IF_ERROR(own.MakeWritable());
    is_writable_ = true;
  }
  own.live().progress.fetch_add(1, std::memory_order_relaxed);
  return Status();
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
