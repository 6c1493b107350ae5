// Ops of tables with rows on a device: they create caches, plan steps and flushes, and read the
// rows that enter a cache.
//
// The ops run on the host. Rows on the device are variables. TensorFlow's own ops read and write
// them according to the results of these ops (tf_sparse_ps/cache/device_store.py).
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/group/row_gather.h"
#include "core/table/planes.h"
#include "kernels/device_caches.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

Status Create(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const int64_t slots, context.Scalar<int64_t>(0, "slots"));
  TSPS_ASSIGN_OR_RETURN(const std::string policy, context.String(1, "policy"));
  TSPS_ASSIGN_OR_RETURN(const std::string table, context.String(2, "table"));
  if (slots < 1 || slots > SlotDirectory::kMostSlots) {
    return Error(Code::kInvalidArgument, "slots must be in [1, ", SlotDirectory::kMostSlots,
                 "]. Received: ", slots);
  }
  if (policy != "admission" && policy != "lru") {
    return Error(Code::kInvalidArgument,
                 "policy must be \"admission\" or \"lru\". Received: ", policy);
  }
  SlotDirectory::Options options;
  options.slots = static_cast<uint32_t>(slots);
  options.policy =
      policy == "lru" ? SlotDirectory::Policy::kLru : SlotDirectory::Policy::kAdmission;
  return context.OutputScalar(0, DeviceCaches::Get().Create(options, table));
}

Status Remove(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const int64_t number, context.Scalar<int64_t>(0, "cache"));
  DeviceCaches::Get().Remove(number);
  return Status();
}

// Reads the host's rows of unique keys, all of one committed state: a matrix for each plane that
// training changes.
class HostRows {
 public:
  HostRows(const TableHandle& table, const std::vector<int64_t>& keys, Executor& executor)
      : table_(table), keys_(keys), executor_(executor) {}

  Status Read(const KernelContext& context, int n_planes) {
    const size_t n = keys_.size();
    std::vector<size_t> widths;
    TSPS_RETURN_IF_ERROR(table_.group().Read([&](const ReadView& view) -> Status {
      widths.clear();
      const PlaneList* const list = view.Planes(table_.table);
      if (list == nullptr) return Status();  // Read() returns the error
      for (size_t p = 0; p < list->trained(); ++p) {
        widths.push_back(WidthOf(table_.config(), list->planes[p], p));
      }
      return Status();
    }));
    if (static_cast<int>(widths.size()) != n_planes) {
      return Error(Code::kFailedPrecondition, "table ", table_.path(), " has ", widths.size(),
                   " planes that training changes, but its cache has ", n_planes,
                   ". Use the same optimizer for the table and its cache");
    }
    for (int p = 0; p < n_planes; ++p) {
      const auto width = static_cast<int64_t>(widths[static_cast<size_t>(p)]);
      TSPS_ASSIGN_OR_RETURN(Tensor plane,
                            context.Output<float>(p, {static_cast<int64_t>(n), width}));
      out_.push_back(std::move(plane));
    }
    RowGather gather(table_.known, table_.table, keys_.data(), n);
    std::vector<uint32_t> rows(n);
    TSPS_RETURN_IF_ERROR(table_.group().Read([&](const ReadView& view) -> Status {
      gather.Find(view, executor_);
      gather.CopyAll(out_[0].data<float>(), executor_);
      view.FindRows(table_.table, keys_.data(), n, rows.data());
      const OptimizerConfig optimizer = view.Stats(table_.table).optimizer;
      for (size_t p = 1; p < out_.size(); ++p) {
        CopySlots(view, optimizer.slot_init[p - 1], p, widths[p], rows);
      }
      return Status();
    }));
    return gather.status();
  }

 private:
  void CopySlots(const ReadView& view, float initial, size_t plane, size_t width,
                 const std::vector<uint32_t>& rows) const {
    float* const to = out_[plane].data<float>();
    executor_.ParallelFor(rows.size(), 1024, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (rows[i] == kAbsentRow) {
          std::fill_n(to + i * width, width, initial);
        } else {
          const float* const from = view.Slot(table_.table, static_cast<int>(plane) - 1, rows[i]);
          std::copy_n(from, width, to + i * width);
        }
      }
    });
  }

  const TableHandle& table_;
  const std::vector<int64_t>& keys_;
  Executor& executor_;
  std::vector<Tensor> out_;
};

class PlanKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(planes_, attributes.Int("P"));
    return Status();
  }

  // Inputs: cache, path, uuid, keys[u]. Outputs: rows P of the entering keys; plan; the positions
  // of keys that will have slots, and these slots; the slots of entering keys; the slots and the
  // keys of victims whose rows are newer than the host's; the positions of keys that stay on the
  // host.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("plan the cache");
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                          DeviceCaches::Get().Of(context, 0));
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, tables_.Resolve(context, 1, 2, 1));
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(3));
    TSPS_RETURN_IF_ERROR(cache->CheckMoved());
    auto planned = cache->MakePlan(keys.data<int64_t>(), keys.size());
    if (!planned.ok()) {
      return Error(planned.status().code(), "table ", (*tables)[0].config().name, ": ",
                   planned.status().message());
    }
    std::vector<int64_t> coming, victim_keys;
    std::vector<int32_t> held, slots, entering, victims, left;
    for (const uint32_t i : planned->entering) {
      coming.push_back(keys.data<int64_t>()[i]);
      entering.push_back(planned->slots[i]);
    }
    for (const SlotDirectory::Victim& victim : planned->victims) {
      if (!victim.newer) continue;
      victims.push_back(static_cast<int32_t>(victim.slot));
      victim_keys.push_back(victim.key);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (planned->slots[i] == SlotDirectory::kNoSlot) {
        left.push_back(static_cast<int32_t>(i));
      } else {
        held.push_back(static_cast<int32_t>(i));
        slots.push_back(planned->slots[i]);
      }
    }
    HostRows rows((*tables)[0], coming, *SharedExecutor());
    TSPS_RETURN_IF_ERROR(rows.Read(context, planes_));
    TSPS_RETURN_IF_ERROR(context.OutputScalar(planes_, static_cast<int64_t>(planned->number)));
    TSPS_RETURN_IF_ERROR(context.OutputVector(planes_ + 1, held));
    TSPS_RETURN_IF_ERROR(context.OutputVector(planes_ + 2, slots));
    TSPS_RETURN_IF_ERROR(context.OutputVector(planes_ + 3, entering));
    TSPS_RETURN_IF_ERROR(context.OutputVector(planes_ + 4, victims));
    TSPS_RETURN_IF_ERROR(context.OutputVector(planes_ + 5, victim_keys));
    return context.OutputVector(planes_ + 6, left);
  }

 private:
  int planes_ = 0;
  TableCache tables_;
};

// Outputs: the number of the flush, and the slots and keys of rows that are newer on the device.
Status Newer(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  TSPS_ASSIGN_OR_RETURN(const SlotDirectory::Newer newer, cache->FindNewer());
  TSPS_RETURN_IF_ERROR(context.OutputScalar(0, static_cast<int64_t>(newer.number)));
  TSPS_RETURN_IF_ERROR(
      context.OutputVector(1, std::vector<int32_t>(newer.slots.begin(), newer.slots.end())));
  return context.OutputVector(2, newer.keys);
}

Status Clear(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  cache->Clear();
  return Status();
}

// Outputs: the counters in the order of CACHE_COUNTERS (tf_sparse_ps/_ops/caches.py).
Status Counters(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  const SlotDirectory::Counters slots = cache->directory().counters();
  const StagingQueue::Counters ahead = cache->queue().counters();
  const std::vector<uint64_t> all = {cache->looked_up, cache->missed,
                                     slots.takes,      slots.keys,
                                     slots.hits,       slots.entered,
                                     slots.evicted,    cache->written,
                                     cache->flushed,   cache->directory().newer(),
                                     ahead.announced,  ahead.taken,
                                     ahead.dropped,    ahead.rows_copied,
                                     ahead.rows_used,  ahead.waited_ns,
                                     cache->pulled,    cache->pushed,
                                     cache->moving()};
  return context.OutputVector(0, std::vector<int64_t>(all.begin(), all.end()));
}

}  // namespace

void RegisterDeviceCacheKernels() {
  RegisterKernel<FunctionKernel<Create>>("TspsCacheCreate");
  RegisterKernel<FunctionKernel<Remove>>("TspsCacheRemove");
  RegisterKernel<PlanKernel>("TspsCachePlan");
  RegisterKernel<FunctionKernel<Newer>>("TspsCacheNewer");
  RegisterKernel<FunctionKernel<Clear>>("TspsCacheClear");
  RegisterKernel<FunctionKernel<Counters>>("TspsCacheCounters");
}

}  // namespace tsps
