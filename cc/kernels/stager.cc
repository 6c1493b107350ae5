#include "kernels/stager.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/gradients/dedupe.h"

namespace tsps {
namespace {

// How long a pass waits for its last batches, when no others come: at the end of a dataset, or
// where it is slow.
constexpr std::chrono::milliseconds kPatience{20};
// Keys of one read: near records are read together, and what is planned for them takes memory.
constexpr size_t kKeysAtOnce = size_t{1} << 18;

bool IsLike(const Stager::Batch& a, const Stager::Batch& b) {
  return a.dataset == b.dataset && a.table.table == b.table.table && a.table.owner == b.table.owner;
}

}  // namespace

// Never destroyed: at exit its thread may be reading.
Stager& Stager::Get() {
  static Stager* const stager = new Stager();
  return *stager;
}

Stager::Counters Stager::counters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

void Stager::Drop(const Batch& like, size_t keep) {
  auto same = static_cast<size_t>(
      std::count_if(waiting_.begin(), waiting_.end(),
                    [&](const Batch& one) { return IsLike(one, like); }));
  const auto is_past = [&](const Batch& one) { return IsLike(one, like) && same-- > keep; };
  const size_t before = waiting_.size();
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_past), waiting_.end());
  counters_.dropped += before - waiting_.size();
}

void Stager::Announce(Batch batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Drop(batch, batch.index == 0 ? 0 : static_cast<size_t>(2 * batch.pass) - 1);
  ++counters_.batches;
  waiting_.push_back(std::move(batch));
  if (!started_) {
    started_ = true;
    std::thread([this] { Run(); }).detach();
  }
  changed_.notify_one();
}

std::vector<Stager::Batch> Stager::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !waiting_.empty(); });
  const auto same = [this](const Batch& one) { return IsLike(one, waiting_.front()); };
  while (true) {
    const auto there = std::count_if(waiting_.begin(), waiting_.end(), same);
    const size_t known = waiting_.size();
    if (there >= waiting_.front().pass) break;
    const bool more = changed_.wait_for(lock, kPatience, [&] { return waiting_.size() != known; });
    if (!more || waiting_.empty()) break;
  }
  std::vector<Batch> batches;
  std::deque<Batch> left;
  for (Batch& one : waiting_) {
    const bool taken =
        batches.empty() ||
        (static_cast<int64_t>(batches.size()) < one.pass && IsLike(one, batches[0]));
    if (taken) {
      batches.push_back(std::move(one));
    } else {
      left.push_back(std::move(one));
    }
  }
  waiting_.swap(left);
  return batches;
}

void Stager::Stage(const std::vector<Batch>& batches) {
  const uint64_t began = NowNs();
  std::vector<std::vector<int32_t>> inverses(batches.size());
  std::vector<IdSpan> inputs;
  for (size_t b = 0; b < batches.size(); ++b) {
    inverses[b].resize(batches[b].keys.size());
    inputs.push_back({batches[b].keys.data(), batches[b].keys.size(), inverses[b].data()});
  }
  const std::vector<int64_t> keys = Dedupe(inputs);
  inverses.clear();
  Group& group = batches[0].table.group();
  bool failed = false;
  for (size_t begin = 0; begin < keys.size() && !failed; begin += kKeysAtOnce) {
    const size_t n = std::min(kKeysAtOnce, keys.size() - begin);
    // Whoever needs the rows reads them then, and learns what is wrong.
    failed = !group.Stage(batches[0].table.table, keys.data() + begin, n).ok();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.passes;
  counters_.keys += keys.size();
  counters_.failed += failed;
  counters_.nanoseconds += NowNs() - began;
}

void Stager::Run() {
  // Behind those that train.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  while (true) Stage(Next());
}

}  // namespace tsps
