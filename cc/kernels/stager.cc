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

// How often the thread checks whether training has come far enough for a pass to be read.
constexpr std::chrono::milliseconds kPoll{10};
// After this time without another batch an incomplete pass is read: the dataset has ended, or is
// slow.
constexpr uint64_t kPatienceNs = 200'000'000;

// Returns the number of steps within which training will have used an announced batch.
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

bool Stager::Stream::IsOf(const Batch& batch) const {
  return dataset == batch.dataset && table == batch.table.table && group == batch.table.owner.get();
}

Stager::Stream& Stager::StreamOf(const Batch& batch) {
  return streams_.Find([&](const Stream& stream) { return stream.IsOf(batch); },
                       Stream{batch.dataset, batch.table.owner.get(), batch.table.table});
}

int64_t Stager::Advance(Stream& stream) {
  const Batch& last = stream.batches.back().batch;
  // Training makes a step of each batch. Evaluation makes none, but takes batches off the queue.
  const auto steps = static_cast<int64_t>(last.table.group().step() - stream.first_step);
  const int64_t position = std::max(steps, last.index - 2 * last.pass - 1);
  while (!stream.staged.empty() && stream.staged.front().last < position) {
    stream.staged.pop_front();
  }
  while (stream.batches.size() > 1 && stream.batches.front().batch.index < position) {
    stream.batches.DropFirst(1, [this](const Waiting&) { ++counters_.dropped; });
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
  if (stream.batches.Begin(batch.index, [this](const Waiting&) { ++counters_.dropped; })) {
    stream.staged.clear();
    stream.first_step = announced.step;
  }
  ++counters_.batches;
  stream.announced_ns = NowNs();
  stream.capacity = announced.room;
  stream.batches.Add({batch, std::move(announced.absent)});
  Advance(stream);
  Wake();
  return Status();
}

void Stager::AnnouncePass(const TableHandle& table, int64_t pass, std::vector<int64_t> keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Batch batch{kOtherNodes, 0, pass, table};
  Stream& stream = StreamOf(batch);
  // Earlier passes that were not read are late: their rows would arrive after those that need them.
  while (stream.batches.size() > 1) {
    stream.batches.DropFirst(1, [this](const Waiting&) { ++counters_.dropped; });
  }
  stream.batches.Add({batch, std::move(keys)});
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

Stager::Candidate Stager::FirstPass(const Stream& stream) {
  Candidate pass;
  const auto most = static_cast<size_t>((*stream.batches.begin()).batch.pass);
  for (const Waiting& waiting : stream.batches) {
    pass.complete = pass.n > 0 && pass.keys + waiting.keys.size() > stream.capacity / 2;
    if (pass.complete || pass.n == most) break;
    pass.keys += waiting.keys.size();
    ++pass.n;
  }
  pass.complete |= pass.n == most;
  return pass;
}

size_t Stager::Ready(Stream& stream, uint64_t now) {
  if (stream.batches.empty()) return 0;
  if (stream.dataset == kOtherNodes) return 1;
  const int64_t position = Advance(stream);
  const Batch& first = stream.batches.front().batch;
  const Candidate pass = FirstPass(stream);
  // Training needs the pass now, even if it is incomplete or there is little space.
  if (first.index <= position + 1) return pass.n;
  size_t outstanding = pass.keys;
  for (const Pass& staged : stream.staged) outstanding += staged.keys;
  const bool waits_in_vain = now - stream.announced_ns > kPatienceNs;
  if (outstanding > stream.capacity && !waits_in_vain) return 0;
  const bool is_near = first.index <= position + first.pass;
  return pass.complete || waits_in_vain || is_near ? pass.n : 0;
}

std::vector<Stager::Waiting> Stager::TakePass(Stream& stream, size_t n) {
  std::vector<Waiting> pass;
  size_t keys = 0;
  for (size_t i = 0; i < n; ++i) {
    pass.push_back(stream.batches.TakeFirst());
    keys += pass.back().keys.size();
  }
  if (stream.dataset != kOtherNodes) stream.staged.push_back({pass.back().batch.index, keys});
  return pass;
}

std::vector<Stager::Waiting> Stager::Next() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    for (auto stream = streams_.begin(); stream != streams_.end(); ++stream) {
      const size_t n = Ready(*stream, NowNs());
      if (n == 0) continue;
      std::vector<Waiting> pass = TakePass(*stream, n);
      streams_.MoveToEnd(stream);  // other streams are next
      return pass;
    }
    streams_.AnyBatch() ? void(changed_.wait_for(lock, kPoll)) : changed_.wait(lock);
  }
}

void Stager::Stage(std::vector<Waiting> pass) {
  const uint64_t began = NowNs();
  const Batch& first = pass[0].batch;
  std::vector<int64_t> keys;
  for (Waiting& waiting : pass) {
    keys.insert(keys.end(), waiting.keys.begin(), waiting.keys.end());
    std::vector<int64_t>().swap(waiting.keys);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  // If this fails, the step that needs the rows reads them, and reports the error.
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
  // Threads that train come first.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
  while (true) Stage(Next());
}

}  // namespace tsps
