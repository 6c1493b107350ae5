#include "core/exchange/node_peers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/futex.h"
#include "core/os/process_info.h"

namespace tsps {
namespace {

constexpr int kCheckMs = 100;  // between two checks whether a rank that is awaited lives

Status FailureOf(const RankFile& peer) {
  if (peer.live().failed.load(std::memory_order_acquire) == 0) return Status();
  return Error(Code::kAborted, "rank ", peer.live().rank.load(), " (pid ", peer.live().pid.load(),
               ") failed in step ", peer.live().step.load(), ": ", peer.live().failure);
}

}  // namespace

NodePeers::NodePeers(std::string folder, size_t local_rank, size_t local_size,
                     std::unique_ptr<RankFile> own, std::atomic<uint64_t>& waited_ns)
    : folder_(std::move(folder)),
      own_(std::move(own)),
      peers_(local_size),
      files_(local_size),
      waited_ns_(waited_ns) {
  files_[local_rank] = own_.get();
}

Status NodePeers::Open() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t r = 0; !open_ && r < files_.size(); ++r) {
    if (files_[r] != nullptr) continue;
    TSPS_ASSIGN_OR_RETURN(
        peers_[r], RankFile::Open(folder_, static_cast<int>(r), static_cast<int>(files_.size())));
    files_[r] = peers_[r].get();
  }
  open_ = true;
  return Status();
}

Result<uint32_t> NodePeers::AgreeOnRounds() const {
  const ExchangeCall& mine = own_->call();
  uint64_t rounds = 1;
  for (const RankFile* file : files_) {
    const ExchangeCall& theirs = file->call();
    if (std::strncmp(theirs.operation, mine.operation, sizeof(mine.operation)) != 0 ||
        theirs.tables != mine.tables || theirs.step != mine.step ||
        theirs.reduction != mine.reduction) {
      const auto describe = [](const RankFile& rank) {
        const ExchangeCall& call = rank.call();
        return "rank " + std::to_string(rank.live().rank.load()) + " merges " +
               std::to_string(call.tables) + " tables for step " + std::to_string(call.step) +
               " in operation '" + call.operation + "'";
      };
      return Error(Code::kInvalidArgument, describe(*file), ", ", describe(*own_),
                   ": all ranks must run the same steps, with the same options, in the same order");
    }
    for (uint32_t t = 0; t < mine.tables; ++t) {
      if (theirs.dims[t] == mine.dims[t]) continue;
      return Error(Code::kInvalidArgument, "in operation '", mine.operation, "' rows of table ", t,
                   " have ", theirs.dims[t], " floats on rank ", file->live().rank.load(), " and ",
                   mine.dims[t], " on rank ", own_->live().rank.load());
    }
    rounds = std::max(rounds, theirs.rounds);
  }
  return static_cast<uint32_t>(rounds);
}

Status NodePeers::Await(const std::atomic<uint64_t>& word, uint64_t target, const RankFile& peer,
                        const MergeCall& call) {
  uint64_t seen = word.load(std::memory_order_acquire);
  if (seen >= target) return Status();
  const uint64_t began = NowNs();
  const uint64_t timeout = static_cast<uint64_t>(std::min(call.timeout_s, 1e9) * 1e9);
  uint64_t progress = peer.live().progress.load(std::memory_order_relaxed);
  uint64_t deadline = began + timeout;
  uint64_t next_check = began + kCheckMs * 1000000ull;
  while (seen < target) {
    TSPS_RETURN_IF_ERROR(FailureOf(peer));
    FutexWait(word, seen, kCheckMs);
    seen = word.load(std::memory_order_acquire);
    const uint64_t now = NowNs();
    if (seen >= target || now < next_check) continue;
    next_check = now + kCheckMs * 1000000ull;
    if (call.cancelled != nullptr && call.cancelled->load()) {
      return Error(Code::kUnavailable, "operation '", call.operation, "' of step ", call.step,
                   " was cancelled");
    }
    if (&peer != own_.get() && !peer.Alive() && word.load(std::memory_order_acquire) < target) {
      TSPS_RETURN_IF_ERROR(FailureOf(peer));  // it may have reported the reason since
      return Error(Code::kUnavailable, "rank ", peer.live().rank.load(), " (pid ",
                   peer.live().pid.load(), ") ", peer.live().left.load() ? "ended" : "died",
                   " in step ", peer.live().step.load(), "; rank ", own_->live().rank.load(),
                   " was waiting for it in operation '", call.operation, "' of step ", call.step);
    }
    const uint64_t reported = peer.live().progress.load(std::memory_order_relaxed);
    if (reported != progress) {
      progress = reported;
      deadline = now + timeout;
    }
    if (now >= deadline) return Late(peer, call, (now - began) / 1000000000);
  }
  waited_ns_.fetch_add(NowNs() - began, std::memory_order_relaxed);
  return Status();
}

Status NodePeers::AwaitAll(uint64_t phase, const MergeCall& call) {
  for (const RankFile* file : files_) {
    TSPS_RETURN_IF_ERROR(Await(file->live().phase, phase, *file, call));
  }
  return Status();
}

void NodePeers::TellFailure(const Status& failure) {
  ExchangeLive& live = own_->live();
  const std::string& text = failure.message();
  std::memcpy(live.failure, text.c_str(), std::min(text.size() + 1, sizeof(live.failure) - 1));
  live.failed.store(1, std::memory_order_release);
  FutexWakeAll(live.phase);
  FutexWakeAll(live.published);
  FutexWakeAll(live.drained);
  FutexWakeAll(own_->verdict().count);
  FutexWakeAll(own_->statement().count);
}

Status NodePeers::Late(const RankFile& peer, const MergeCall& call, uint64_t waited_s) const {
  const int64_t pid = peer.live().pid.load();
  return Error(Code::kDeadlineExceeded, "rank ", own_->live().rank.load(), " waited ",
               std::max(call.timeout_s, static_cast<double>(waited_s)), " s for rank ",
               peer.live().rank.load(), " (pid ", pid, ") in operation '", call.operation,
               "' of step ", call.step, ": that process is ", DescribeProcess(pid), ", and step ",
               peer.live().step.load(),
               " is the last it has come to. TFSPS_TIMEOUT_S sets how long to wait");
}

}  // namespace tsps
