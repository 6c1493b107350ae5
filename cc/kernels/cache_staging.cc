// TspsCacheStage, TspsCacheNextCopy, TspsCacheTake, TspsCacheCheckTaken and TspsCacheClose: rows
// that coming batches need on a device. A dataset announces the batches, a thread copies the rows
// during training, and lookups take them.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/cache/staging_queue.h"
#include "core/gradients/dedupe.h"
#include "core/group/row_gather.h"
#include "core/table/planes.h"
#include "kernels/async_kernel.h"
#include "kernels/device_caches.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

class StageKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(n_, attributes.Int("N"));
    TSPS_ASSIGN_OR_RETURN(lookups_, attributes.IntList("lookups"));
    int total = 0;
    for (const int features : lookups_) total += features;
    if (total == n_) return Status();
    return Error(Code::kInvalidArgument, "lookups must have ", n_,
                 " ids in all. Received: ", total);
  }

  // Inputs: cache, index, ids N. Each lookup has as many of the ids as `lookups` has for it.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("announce to the cache");
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                          DeviceCaches::Get().Of(context, 0));
    TSPS_ASSIGN_OR_RETURN(const int64_t index, context.Scalar<int64_t>(1, "index"));
    std::vector<StagedLookup> lookups;
    int at = 2;
    for (const int features : lookups_) {
      std::vector<int64_t> ids;
      for (int f = 0; f < features; ++f) {
        TSPS_ASSIGN_OR_RETURN(const Tensor feature, context.Input(at++));
        ids.insert(ids.end(), feature.data<int64_t>(), feature.data<int64_t>() + feature.size());
      }
      lookups.emplace_back(std::move(ids));
    }
    cache->queue().Add(index, std::move(lookups));
    return Status();
  }

 private:
  int n_ = 0;
  std::vector<int> lookups_;
};

// The thread that copies rows to a device calls this op repeatedly.
class NextCopyKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: cache, path, uuid, copied. Outputs: state (0: continue; 1: the announced batches are
  // not the ones that are looked up; 2: closed), copy, rows, removed.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                          DeviceCaches::Get().Of(context, 0));
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, tables_.Resolve(context, 1, 2, 1));
    TSPS_ASSIGN_OR_RETURN(const int64_t copied, context.Scalar<int64_t>(3, "copied"));
    const TableHandle& table = (*tables)[0];
    const StagingQueue::Work work = cache->queue().Next(copied);
    const WorkSpan span("read for the cache");
    const size_t n = work.copy == 0 ? 0 : work.lookup->copied.size();
    TSPS_ASSIGN_OR_RETURN(const Tensor rows,
                          context.Output<float>(2, {static_cast<int64_t>(n), table.config().dim}));
    const bool read = n > 0 && Read(table, work, cache->queue(), rows.data<float>());
    if (!read && work.copy != 0) cache->queue().Fail(work.copy);
    TSPS_RETURN_IF_ERROR(context.OutputScalar(0, int64_t{work.closed ? 2 : work.astray ? 1 : 0}));
    TSPS_RETURN_IF_ERROR(context.OutputScalar(1, read ? work.copy : int64_t{0}));
    return context.OutputVector(3, work.removed);
  }

 private:
  // Reads the rows as of the step that the copy needs. Returns whether that succeeded.
  static bool Read(const TableHandle& table, const StagingQueue::Work& work, StagingQueue& queue,
                   float* rows) {
    std::vector<int64_t> keys;
    for (const uint32_t i : work.lookup->copied) keys.push_back(work.lookup->keys[i]);
    if (!CheckKeys(table.config(), keys.data(), keys.size()).ok()) return false;
    SerialExecutor here;  // the threads of the shared executor are for training
    for (;;) {
      bool early = false;
      RowGather gather(table.known, table.table, keys.data(), keys.size());
      const Status read = table.group().Read([&](const ReadView& view) -> Status {
        early = view.step() < work.step;
        if (early) return Status();
        gather.Find(view, here);
        gather.CopyAll(rows, here);
        return Status();
      });
      if (!read.ok() || !gather.status().ok()) return false;
      if (!early) return true;
      // The step is decided, but not published yet. That takes microseconds, unless it is refused.
      if (!queue.Wanted(work.copy)) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  TableCache tables_;
};

class TakeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(n_, attributes.Int("N"));
    return Status();
  }

  // Inputs: cache, ids N. Outputs: inverses N, keys, order (the position of each key's row in the
  // rows of `slots`, `positions` and `absent`, one after another), slots, copy, positions in the
  // copy, absent, ticket.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    const auto take = [this, context] { return NoThrow([&] { return Take(context); }); };
    const Status status = NoThrow([&]() -> Status {
      TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                            DeviceCaches::Get().Of(context, 0));
      TSPS_ASSIGN_OR_RETURN(const Ids ids, Ids::Of(context, n_));
      if (!cache->moving() && !cache->queue().WouldWait(ids.data(), ids.size())) {
        done(take());
      } else {
        RunOnWaiter(done, take);
      }
      return Status();
    });
    if (!status.ok()) done(status);
  }

 private:
  // The ids of all features, one feature after another.
  class Ids {
   public:
    static Result<Ids> Of(const KernelContext& context, int n) {
      Ids ids;
      for (int f = 0; f < n; ++f) {
        TSPS_ASSIGN_OR_RETURN(Tensor feature, context.Input(1 + f));
        ids.features_.push_back(std::move(feature));
      }
      if (n != 1) {
        for (const Tensor& feature : ids.features_) {
          ids.joined_.insert(ids.joined_.end(), feature.data<int64_t>(),
                             feature.data<int64_t>() + feature.size());
        }
      }
      return ids;
    }
    const std::vector<Tensor>& features() const { return features_; }
    const int64_t* data() const {
      return features_.size() == 1 ? features_[0].data<int64_t>() : joined_.data();
    }
    size_t size() const { return features_.size() == 1 ? features_[0].size() : joined_.size(); }

   private:
    std::vector<Tensor> features_;
    std::vector<int64_t> joined_;
  };

  Status Take(const KernelContext& context) {
    const WorkSpan span("find in the cache");
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                          DeviceCaches::Get().Of(context, 0));
    // The slots are found after this, so a step that is committed in between counts, too.
    TSPS_ASSIGN_OR_RETURN(const uint64_t ticket, cache->BeginLookup());
    TSPS_RETURN_IF_ERROR(context.OutputScalar(n_ + 6, static_cast<int64_t>(ticket)));
    TSPS_ASSIGN_OR_RETURN(const Ids ids, Ids::Of(context, n_));
    if (ids.size() > static_cast<size_t>(INT32_MAX)) {
      return Error(Code::kInvalidArgument,
                   "a call can look up at most 2147483647 ids of a table. Received: ", ids.size());
    }
    std::vector<IdSpan> spans;
    for (int f = 0; f < n_; ++f) {
      const Tensor& feature = ids.features()[static_cast<size_t>(f)];
      TSPS_ASSIGN_OR_RETURN(const Tensor inverse, context.Output<int32_t>(f, feature.shape()));
      spans.push_back({feature.data<int64_t>(), feature.size(), inverse.data<int32_t>()});
    }
    const StagingQueue::Taken taken = cache->queue().Take(ids.data(), ids.size());
    if (taken.lookup == nullptr) {
      const std::vector<int64_t> keys = Dedupe(spans);
      std::vector<int32_t> slots(keys.size());
      cache->directory().Find(keys.data(), keys.size(), slots.data());
      return Answer(context, *cache, keys, slots, std::vector<int32_t>(keys.size(), -1), 0);
    }
    const int32_t* from = taken.lookup->inverse.data();
    for (const IdSpan& span : spans) {
      std::copy_n(from, span.n, span.inverse);
      from += span.n;
    }
    return Answer(context, *cache, taken.lookup->keys, taken.slots, taken.positions, taken.copy);
  }

  // Writes the outputs. Each key has a slot in `key_slots`, or a position in the copy in
  // `copy_positions`, or neither.
  Status Answer(const KernelContext& context, DeviceCache& cache, const std::vector<int64_t>& keys,
                const std::vector<int32_t>& key_slots, const std::vector<int32_t>& copy_positions,
                int64_t copy) const {
    const size_t n = keys.size();
    std::vector<int32_t> slots, positions;
    std::vector<int64_t> absent;
    for (size_t i = 0; i < n; ++i) {
      if (key_slots[i] != SlotDirectory::kNoSlot) {
        slots.push_back(key_slots[i]);
      } else if (copy_positions[i] >= 0) {
        positions.push_back(copy_positions[i]);
      } else {
        absent.push_back(keys[i]);
      }
    }
    TSPS_RETURN_IF_ERROR(context.OutputVector(n_, keys));
    TSPS_ASSIGN_OR_RETURN(const Tensor order,
                          context.Output<int32_t>(n_ + 1, {static_cast<int64_t>(n)}));
    int32_t next_slot = 0, next_copied = static_cast<int32_t>(slots.size());
    int32_t next_absent = static_cast<int32_t>(slots.size() + positions.size());
    for (size_t i = 0; i < n; ++i) {
      order.data<int32_t>()[i] = key_slots[i] != SlotDirectory::kNoSlot ? next_slot++
                                 : copy_positions[i] >= 0               ? next_copied++
                                                                        : next_absent++;
    }
    cache.looked_up += n;
    cache.missed += absent.size();
    TSPS_RETURN_IF_ERROR(context.OutputVector(n_ + 2, slots));
    TSPS_RETURN_IF_ERROR(context.OutputScalar(n_ + 3, copy));
    TSPS_RETURN_IF_ERROR(context.OutputVector(n_ + 4, positions));
    return context.OutputVector(n_ + 5, absent);
  }

  int n_ = 0;
};

// Inputs: cache, ticket, attempt. Outputs: the number of the next attempt; 0: none is needed.
Status CheckTaken(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  TSPS_ASSIGN_OR_RETURN(const int64_t ticket, context.Scalar<int64_t>(1, "ticket"));
  TSPS_ASSIGN_OR_RETURN(const int64_t attempt, context.Scalar<int64_t>(2, "attempt"));
  TSPS_ASSIGN_OR_RETURN(const int64_t next,
                        cache->EndLookup(static_cast<uint64_t>(ticket), attempt));
  return context.OutputScalar(0, next);
}

// Ends the thread that copies rows, and its waits.
Status Close(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  cache->queue().Close();
  return Status();
}

}  // namespace

void RegisterCacheStagingKernels() {
  RegisterKernel<StageKernel>("TspsCacheStage");
  RegisterKernel<NextCopyKernel>("TspsCacheNextCopy");
  RegisterAsyncKernel<TakeKernel>("TspsCacheTake");
  RegisterKernel<FunctionKernel<CheckTaken>>("TspsCacheCheckTaken");
  RegisterKernel<FunctionKernel<Close>>("TspsCacheClose");
}

}  // namespace tsps
