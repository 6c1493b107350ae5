// TspsCacheStep, TspsCacheMoved and TspsCacheDraws: a step of tables with rows on a device. The
// host commits the step, is notified when the device has its rows, and computes the draws that
// round rows on the device. TspsCachePlan (device_cache.cc) plans the step.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/table/planes.h"
#include "core/table/row_type.h"
#include "core/table/table_config.h"
#include "kernels/async_kernel.h"
#include "kernels/device_caches.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/step.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

// A step of tables of which some have caches. One mutation applies the gradients of keys that stay
// on the host, and writes the rows of victims. The slot directories commit before it is published.
class StepKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(planes_, attributes.IntList("planes"));
    if (static_cast<int>(planes_.size()) != tables_) {
      return Error(Code::kInvalidArgument, "planes must have an item for each of ", tables_,
                   " tables. Received: ", planes_.size());
    }
    return Status();
  }

  // Inputs: path, step, paths T, uuids T, keys T, grads T, hyper T, optimizer, caches T (one cache
  // per device of a table, or none), plans T (one per cache), not_finite T (keys whose gradients
  // are not finite), victim_keys T (of all caches of a table), victims P (planes[t] matrices for
  // table t). Outputs: verdict.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunHere(done, [this, context](const ReportDone& report) { return Make(context, report); });
  }

 private:
  struct Part {
    std::shared_ptr<DeviceCache> cache;
    int64_t plan = 0;
    size_t written = 0;  // rows of victims; the first cache of a table counts them for all
  };

  Status Make(const KernelContext& context, const ReportDone& report) {
    const WorkSpan span("apply");
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(1, "step"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    StepUpdates updates;
    std::vector<Part> parts;
    const Status read = [&]() -> Status {
      TSPS_RETURN_IF_ERROR(
          updates.ReadAll(context, 2, tables_, /*with_counts=*/false, *owner, &cache_));
      return ReadParts(context, step, *owner, &updates, &parts);
    }();
    return MakeStep(context, report, step, *owner, nullptr, [&](GroupWriter& writer) -> Status {
      TSPS_RETURN_IF_ERROR(read);
      TSPS_RETURN_IF_ERROR(updates.Prepare(writer, step));
      for (const Part& part : parts) {
        const Status committed = part.cache->Commit(part.plan, step, part.written);
        if (committed.ok()) continue;
        writer.Abort();
        return committed;
      }
      return Status();
    });
  }

  Status ReadParts(const KernelContext& context, int64_t step, OpenGroup& owner,
                   StepUpdates* updates, std::vector<Part>* parts) {
    const int caches = 3 + 5 * tables_;
    int plane = caches + 4 * tables_;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 2, 2 + tables_, tables_));
    for (int t = 0; t < tables_; ++t) {
      const int first = plane;
      plane += planes_[static_cast<size_t>(t)];
      TSPS_ASSIGN_OR_RETURN(const Tensor numbers, context.Input(caches + t, 1, "caches"));
      TSPS_ASSIGN_OR_RETURN(const Tensor plans, context.Input(caches + tables_ + t, 1, "plans"));
      if (plans.size() != numbers.size()) {
        return Error(Code::kInvalidArgument, "expected a plan for each of ", numbers.size(),
                     " caches of a table. Received: ", plans.size());
      }
      if (numbers.size() == 0) continue;
      const TableHandle& table = (*tables)[static_cast<size_t>(t)];
      TSPS_ASSIGN_OR_RETURN(const Tensor bad,
                            context.Input(caches + 2 * tables_ + t, 1, "not_finite"));
      if (bad.size() > 0) {
        return Error(Code::kInvalidArgument, "table ", table.config().name,
                     ": the gradient of key ", *bad.data<int64_t>(), " is not finite; step ", step,
                     " was not applied");
      }
      TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(caches + 3 * tables_ + t));
      const size_t written = keys.size();
      if (keys.size() > 0) {
        TSPS_RETURN_IF_ERROR(AddVictims(context, table, owner, first,
                                        planes_[static_cast<size_t>(t)], std::move(keys), updates));
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        Part part;
        TSPS_ASSIGN_OR_RETURN(part.cache, DeviceCaches::Get().Find(numbers.data<int64_t>()[i]));
        part.plan = plans.data<int64_t>()[i];
        part.written = i == 0 ? written : 0;
        parts->push_back(std::move(part));
      }
    }
    return Status();
  }

  static Status AddVictims(const KernelContext& context, const TableHandle& table, OpenGroup& owner,
                           int first, int n_planes, Tensor keys, StepUpdates* updates) {
    TableWrites writes;
    writes.table = table.table;
    writes.keys = keys.data<int64_t>();
    writes.n = keys.size();
    std::vector<size_t> widths;
    TSPS_RETURN_IF_ERROR(owner.group().Read([&](const ReadView& view) -> Status {
      writes.planes.clear();
      widths.clear();
      const PlaneList* const list = view.Planes(table.table);
      for (size_t p = 0; list != nullptr && p < list->trained(); ++p) {
        const Plane& plane = list->planes[p];
        widths.push_back(WidthOf(table.config(), plane, p));
        writes.planes.push_back({plane.role, plane.name, plane.row_bytes, nullptr});
      }
      return Status();
    }));
    if (static_cast<int>(writes.planes.size()) != n_planes) {
      return Error(Code::kInvalidArgument, "table ", table.path(), " has ", writes.planes.size(),
                   " planes that training changes. Received: victims with ", n_planes);
    }
    for (int p = 0; p < n_planes; ++p) {
      PlaneValues& plane = writes.planes[static_cast<size_t>(p)];
      TSPS_ASSIGN_OR_RETURN(Tensor rows, context.Input(first + p, 2, "victims"));
      const auto width = static_cast<int64_t>(widths[static_cast<size_t>(p)]);
      if (rows.dim(0) != keys.dim(0) || rows.dim(1) != width) {
        return Error(Code::kInvalidArgument, "rows of victims of table ", table.path(),
                     " must have shape ", ShapeString({keys.dim(0), width}),
                     ". Received: ", ShapeString(rows.shape()));
      }
      plane.values = rows.data<float>();
      if (p == 0) {
        TSPS_ASSIGN_OR_RETURN(StoredRows stored, StoredRows::Of(table.config(), writes.keys,
                                                                rows.data<float>(), writes.n));
        plane.values = updates->Hold(std::move(stored));
      }
      updates->Hold(std::move(rows));
    }
    updates->AddWrites(std::move(writes));
    updates->Hold(std::move(keys));
    return Status();
  }

  int tables_ = 0;
  std::vector<int> planes_;
  TableCache cache_;
};

// Records that the device has the rows of a committed plan. Inputs: cache, plan.
Status Moved(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  TSPS_ASSIGN_OR_RETURN(const int64_t plan, context.Scalar<int64_t>(1, "plan"));
  cache->Moved(plan);
  return Status();
}

// Inputs: path, uuid, keys[n], step. Outputs: draws[n], the random numbers that round the rows.
class DrawsKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, tables_.Resolve(context, 0, 1, 1));
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(2));
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(3, "step"));
    const InitializerConfig& table = (*tables)[0].config().initializer;
    std::vector<int64_t> draws(keys.size());
    for (size_t i = 0; i < draws.size(); ++i) {
      draws[i] = static_cast<int64_t>(
          RowDraw(table, keys.data<int64_t>()[i], static_cast<uint64_t>(step)));
    }
    return context.OutputVector(0, draws);
  }

 private:
  TableCache tables_;
};

}  // namespace

void RegisterDeviceCacheStepKernels() {
  RegisterAsyncKernel<StepKernel>("TspsCacheStep");
  RegisterKernel<FunctionKernel<Moved>>("TspsCacheMoved");
  RegisterKernel<DrawsKernel>("TspsCacheDraws");
}

}  // namespace tsps
