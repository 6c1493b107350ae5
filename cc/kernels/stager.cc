#include "kernels/stager.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/key_owner.h"
#include "core/gradients/dedupe.h"

namespace tsps {
namespace {

// How often it looks whether training has come far enough for a pass to be read.
constexpr std::chrono::milliseconds kPoll{10};
// After so long without another batch a pass is read as it is: the dataset has ended, or is slow.
constexpr uint64_t kPatienceNs = 200'000'000;
constexpr size_t kMostStreams = 64;  // that are remembered without a batch that waits

// Within how many steps what is announced will have been used.
uint64_t StepsAhead(const Stager::Batch& batch) {
  return 2 * static_cast<uint64_t>(batch.pass) + 2;
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

Stager::Stream& Stager::StreamOf(const Batch& batch) {
  for (Stream& one : streams_) {
    if (one.dataset == batch.dataset && one.table == batch.table.table &&
        one.group == batch.table.owner.get()) {
      return one;
    }
  }
  if (streams_.size() >= kMostStreams) {
    streams_.remove_if([](const Stream& one) { return one.waiting.empty(); });
  }
  Stream& added = streams_.emplace_back();
  added.dataset = batch.dataset;
  added.group = batch.table.owner.get();
  added.table = batch.table.table;
  return added;
}

void Stager::DropFirst(Stream* stream) {
  stream->waiting.pop_front();
  ++counters_.dropped;
}

int64_t Stager::Advance(Stream* stream) {
  const Batch& last = stream->waiting.back().batch;
  // Training makes a step of each batch; evaluation makes none, but takes them off the queue.
  const auto steps = static_cast<int64_t>(last.table.group().step() - stream->first_step);
  const int64_t position = std::max(steps, last.index - 2 * last.pass - 1);
  while (!stream->staged.empty() && stream->staged.front().last < position) {
    stream->staged.pop_front();
  }
  while (stream->waiting.size() > 1 && stream->waiting.front().batch.index < position) {
    DropFirst(stream);
  }
  return position;
}

Status Stager::Announce(const Batch& batch, const int64_t* ids, size_t n) {
  std::vector<int32_t> inverse(n);
  std::vector<int64_t> keys = Dedupe({{ids, n, inverse.data()}});
  const auto others = [&](int64_t key) { return OwnerOf(key, batch.nodes) != batch.node; };
  keys.erase(std::remove_if(keys.begin(), keys.end(), others), keys.end());
  TSPS_ASSIGN_OR_RETURN(
      Group::Announced announced,
      batch.table.group().Announce(batch.table.table, keys.data(), keys.size(), StepsAhead(batch)));
  const std::lock_guard<std::mutex> lock(mutex_);
  Stream& stream = StreamOf(batch);
  if (batch.index == 0) {
    while (!stream.waiting.empty()) DropFirst(&stream);
    stream.staged.clear();
    stream.first_step = announced.step;
  }
  ++counters_.batches;
  stream.announced_ns = NowNs();
  stream.room = announced.room;
  stream.waiting.push_back({batch, std::move(announced.absent)});
  Advance(&stream);
  Wake();
  return Status();
}

void Stager::AnnouncePass(const TableHandle& table, int64_t pass, std::vector<int64_t> keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Batch batch{kOtherNodes, 0, pass, table};
  Stream& stream = StreamOf(batch);
  // One that is still to be read is late: it would come after those that need it.
  while (stream.waiting.size() > 1) DropFirst(&stream);
  stream.waiting.push_back({batch, std::move(keys)});
  ++counters_.batches;
  Wake();
}

void Stager::Wake() {
  if (!started_) {
    started_ = true;
    std::thread([this] { Run(); }).detach();
  }
  changed_.notify_one();
}

size_t Stager::Ready(Stream* stream, uint64_t now) {
  if (stream->waiting.empty()) return 0;
  if (stream->dataset == kOtherNodes) return 1;
  const int64_t position = Advance(stream);
  const Batch& first = stream->waiting.front().batch;
  size_t n = 0, keys = 0, outstanding = 0;
  bool full = false;
  for (const Waiting& one : stream->waiting) {
    full = static_cast<int64_t>(n) == first.pass ||
           (n > 0 && keys + one.keys.size() > stream->room / 2);
    if (full) break;
    keys += one.keys.size();
    ++n;
  }
  full |= static_cast<int64_t>(n) == first.pass;
  for (const Pass& one : stream->staged) outstanding += one.keys;
  const bool ended = now - stream->announced_ns > kPatienceNs;
  if (first.index <= position + 1) return n;
  if (outstanding + keys > stream->room && !ended) return 0;
  return full || ended || first.index <= position + first.pass ? n : 0;
}

std::vector<Stager::Waiting> Stager::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    bool some = false;
    for (auto stream = streams_.begin(); stream != streams_.end(); ++stream) {
      Stream& one = *stream;
      const size_t n = Ready(&one, NowNs());
      some |= !one.waiting.empty();
      if (n == 0) continue;
      std::vector<Waiting> pass;
      size_t keys = 0;
      for (size_t i = 0; i < n; ++i) {
        pass.push_back(std::move(one.waiting.front()));
        keys += pass.back().keys.size();
        one.waiting.pop_front();
      }
      if (one.dataset != kOtherNodes) one.staged.push_back({pass.back().batch.index, keys});
      streams_.splice(streams_.end(), streams_, stream);  // others come before it
      return pass;
    }
    some ? void(changed_.wait_for(lock, kPoll)) : changed_.wait(lock);
  }
}

void Stager::Stage(std::vector<Waiting> pass) {
  const uint64_t began = NowNs();
  const Batch& first = pass[0].batch;
  std::vector<int64_t> keys;
  for (Waiting& one : pass) {
    keys.insert(keys.end(), one.keys.begin(), one.keys.end());
    std::vector<int64_t>().swap(one.keys);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  // Whoever needs the rows reads them then, and learns what is wrong.
  const Status staged =
      first.table.group().Stage(first.table.table, keys.data(), keys.size(), StepsAhead(first));
  const std::lock_guard<std::mutex> lock(mutex_);
  ++counters_.passes;
  counters_.keys += keys.size();
  if (staged.code() == Code::kNotFound) {  // nobody needs rows of a table that was removed
    counters_.dropped += pass.size();
  } else {
    counters_.failed += !staged.ok();
  }
  counters_.nanoseconds += NowNs() - began;
}

void Stager::Run() {
  // Behind those that train.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  while (true) Stage(Next());
}

}  // namespace tsps
