// TspsCount creates the page of counters of a rank. TspsCountSamples counts samples.
#include "kernels/counter_page.h"

#include <chrono>

#include "core/tier/disk_totals.h"
#include "kernels/device_caches.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

constexpr int64_t kPauseNs = 20'000'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

LookupCounters& LookupCounters::OfProcess() {
  static LookupCounters counters;
  return counters;
}

void LookupCounters::Add(size_t n_ids) {
  lookups.fetch_add(1, std::memory_order_relaxed);
  ids.fetch_add(n_ids, std::memory_order_relaxed);
}

void LookupCounters::AddTrained(size_t n_ids, size_t n_unique) {
  ids_trained.fetch_add(n_ids, std::memory_order_relaxed);
  unique_ids.fetch_add(n_unique, std::memory_order_relaxed);
}

Status CounterPage::Create(const std::string& group_path, int64_t rank, int64_t size,
                           int64_t local_rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (page_ != nullptr) return Status();
  TSPS_ASSIGN_OR_RETURN(page_, RankCounters::Create(group_path, rank, size, local_rank));
  exists_.store(true, std::memory_order_release);
  return Status();
}

void CounterPage::Show(OpenGroup& owner) {
  if (!exists_.load(std::memory_order_acquire)) return;
  const int64_t now = NowNs();
  if (now - shown_ns_.load(std::memory_order_relaxed) < kPauseNs) return;
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) Store(owner);
}

void CounterPage::ShowNow(OpenGroup& owner) {
  if (!exists_.load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Store(owner);
}

void CounterPage::Store(OpenGroup& owner) {
  shown_ns_.store(NowNs(), std::memory_order_relaxed);
  uint64_t values[kRankCounters] = {};
  const auto set = [&values](RankCounter counter, uint64_t value) {
    values[static_cast<size_t>(counter)] = value;
  };
  set(RankCounter::step, owner.group().step());
  set(RankCounter::rows_written, owner.group().counters().rows_written);
  const LookupCounters& lookups = LookupCounters::OfProcess();
  set(RankCounter::lookups, lookups.lookups);
  set(RankCounter::ids_looked_up, lookups.ids);
  set(RankCounter::ids_trained, lookups.ids_trained);
  set(RankCounter::unique_ids, lookups.unique_ids);
  set(RankCounter::samples_trained, lookups.samples);
  if (const std::shared_ptr<NodeExchange> exchange = owner.exchange()) {
    const ExchangeCounters& node = exchange->counters();
    set(RankCounter::rows_shared, node.rows_contributed);
    set(RankCounter::bytes_shared, node.bytes_contributed);
    set(RankCounter::rows_merged, node.rows_merged);
    set(RankCounter::rounds, node.rounds);
    set(RankCounter::waited_ns, node.waited_ns);
  }
  set(RankCounter::bytes_sent, ProcessWireCounters().bytes_packed);
  set(RankCounter::bytes_received, ProcessWireCounters().bytes_unpacked);
  const Timeline::Counters times = Timeline::Get().counters();
  set(RankCounter::sending_ns, times.sending_ns);
  set(RankCounter::overlapped_ns, times.overlapped_ns);
  const DiskTotals& disk = DiskTotals::OfProcess();
  set(RankCounter::rows_read, disk.records);
  set(RankCounter::disk_bytes, disk.bytes);
  set(RankCounter::rows_read_late, disk.late);
  set(RankCounter::rows_read_before, disk.cached);
  set(RankCounter::disk_waited_ns, disk.waited_ns);
  set(RankCounter::disk_errors, disk.errors);
  const RowsAhead::Counters pulls = owner.pulls().counters();
  set(RankCounter::rows_pulled, pulls.looked_up);
  set(RankCounter::rows_pulled_before, pulls.ahead);
  const DeviceCaches::Totals caches = DeviceCaches::Get().totals();
  set(RankCounter::cache_lookups, caches.looked_up);
  set(RankCounter::cache_misses, caches.missed);
  page_->Store(values);
}

namespace {

// Inputs: path, rank, size, local_rank.
Status Count(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const int64_t rank, context.Scalar<int64_t>(1, "rank"));
  TSPS_ASSIGN_OR_RETURN(const int64_t size, context.Scalar<int64_t>(2, "size"));
  TSPS_ASSIGN_OR_RETURN(const int64_t local_rank, context.Scalar<int64_t>(3, "local_rank"));
  if (local_rank < 0 || local_rank > 9999) {
    return Error(Code::kInvalidArgument,
                 "expected 0 <= local_rank <= 9999. Received: ", local_rank);
  }
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  return owner->counter_page().Create(path, rank, size, local_rank);
}

// Inputs: path, samples.
Status CountSamples(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const int64_t samples, context.Scalar<int64_t>(1, "samples"));
  if (samples < 0) {
    return Error(Code::kInvalidArgument, "expected samples >= 0. Received: ", samples);
  }
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  LookupCounters::OfProcess().samples.fetch_add(static_cast<uint64_t>(samples),
                                                std::memory_order_relaxed);
  owner->counter_page().ShowNow(*owner);
  return Status();
}

}  // namespace

void RegisterCounterKernels() {
  RegisterKernel<FunctionKernel<Count>>("TspsCount");
  RegisterKernel<FunctionKernel<CountSamples>>("TspsCountSamples");
}

}  // namespace tsps
