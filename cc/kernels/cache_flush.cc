// TspsCacheFlush: the end of a flush, which writes rows that are newer on a device to the host.
// TspsCacheNewer (device_cache.cc) begins a flush.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/table/planes.h"
#include "kernels/device_caches.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

// Returns the rows at some positions of a matrix.
std::vector<float> RowsAt(const Tensor& matrix, const std::vector<uint32_t>& positions) {
  const auto width = static_cast<size_t>(matrix.dim(1));
  std::vector<float> rows(positions.size() * width);
  for (size_t i = 0; i < positions.size(); ++i) {
    std::copy_n(matrix.data<float>() + positions[i] * width, width, &rows[i * width]);
  }
  return rows;
}

class FlushKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(n_slots_, attributes.Int("S"));
    return Status();
  }

  // Inputs: cache, path, uuid, flush, slots[n], keys[n], rows[n, dim], others S. Outputs: flushed,
  // left.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("flush the cache");
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                          DeviceCaches::Get().Of(context, 0));
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, tables_.Resolve(context, 1, 2, 1));
    const TableHandle& table = (*tables)[0];
    TSPS_ASSIGN_OR_RETURN(const int64_t flush, context.Scalar<int64_t>(3, "flush"));
    TSPS_ASSIGN_OR_RETURN(const Tensor slots, context.Input(4, 1, "slots"));
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(5));
    std::vector<Tensor> planes;
    for (int p = 0; p <= n_slots_; ++p) {
      TSPS_ASSIGN_OR_RETURN(Tensor plane, context.Input(6 + p, 2, p == 0 ? "rows" : "others"));
      planes.push_back(std::move(plane));
    }
    SlotDirectory::Newer newer;
    newer.number = static_cast<uint64_t>(flush);
    newer.slots.assign(slots.data<int32_t>(), slots.data<int32_t>() + slots.size());
    newer.keys.assign(keys.data<int64_t>(), keys.data<int64_t>() + keys.size());
    size_t flushed = 0;
    // While the writer is in use, neither the group nor a cache commits a step.
    TSPS_RETURN_IF_ERROR(table.owner->Write([&](GroupWriter& writer) -> Status {
      TSPS_RETURN_IF_ERROR(CheckShapes(table, newer, planes));
      TSPS_ASSIGN_OR_RETURN(flushed,
                            cache->Flush(newer, [&](const std::vector<uint32_t>& positions) {
                              return Assign(writer, table, newer, planes, positions);
                            }));
      return Status();
    }));
    TSPS_RETURN_IF_ERROR(context.OutputScalar(0, static_cast<int64_t>(flushed)));
    return context.OutputScalar(1, static_cast<int64_t>(newer.keys.size() - flushed));
  }

 private:
  static Status CheckShapes(const TableHandle& table, const SlotDirectory::Newer& newer,
                            const std::vector<Tensor>& planes) {
    if (newer.slots.size() != newer.keys.size()) {
      return Error(Code::kInvalidArgument, "a flush of table ", table.path(), " has ",
                   newer.keys.size(), " keys. Received: ", newer.slots.size(), " slots");
    }
    std::vector<size_t> widths;
    TSPS_RETURN_IF_ERROR(table.group().Read([&](const ReadView& view) -> Status {
      widths.clear();
      const PlaneList* const list = view.Planes(table.table);
      for (size_t p = 0; list != nullptr && p < list->trained(); ++p) {
        widths.push_back(WidthOf(table.config(), list->planes[p], p));
      }
      return Status();
    }));
    if (widths.size() != planes.size()) {
      return Error(Code::kFailedPrecondition, "table ", table.path(), " has ", widths.size(),
                   " planes that training changes. Received: a flush of ", planes.size());
    }
    for (size_t p = 0; p < planes.size(); ++p) {
      const std::vector<int64_t> shape = {static_cast<int64_t>(newer.keys.size()),
                                          static_cast<int64_t>(widths[p])};
      if (planes[p].shape() == shape) continue;
      return Error(Code::kInvalidArgument, "rows of a flush of table ", table.path(),
                   " must have shape ", ShapeString(shape),
                   ". Received: ", ShapeString(planes[p].shape()));
    }
    return Status();
  }

  static Status Assign(GroupWriter& writer, const TableHandle& table,
                       const SlotDirectory::Newer& newer, const std::vector<Tensor>& planes,
                       const std::vector<uint32_t>& positions) {
    const bool all = positions.size() == newer.keys.size();
    std::vector<int64_t> keys;
    std::vector<std::vector<float>> chosen;
    std::vector<const float*> values;
    for (const uint32_t position : positions) keys.push_back(newer.keys[position]);
    for (const Tensor& plane : planes) {
      if (!all) chosen.push_back(RowsAt(plane, positions));
      values.push_back(all ? plane.data<float>() : chosen.back().data());
    }
    return writer.Assign(table.table, keys.data(), values[0],
                         planes.size() == 1 ? nullptr : values.data() + 1, keys.size(),
                         *SharedExecutor());
  }

  int n_slots_ = 0;
  TableCache tables_;
};

}  // namespace

void RegisterCacheFlushKernels() { RegisterKernel<FlushKernel>("TspsCacheFlush"); }

}  // namespace tsps
