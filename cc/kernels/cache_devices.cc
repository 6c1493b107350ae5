// TspsCacheDivide and TspsCacheExchanged, for tables with rows on several devices of a process: the
// device of each key, and the counters of rows and gradients that travel between devices. Each
// device has its own cache (device_caches.h).
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/key_owner.h"
#include "kernels/device_caches.h"
#include "kernels/kernel.h"

namespace tsps {
namespace {

class DivideKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(devices_, attributes.Int("D"));
    return Status();
  }

  // Inputs: keys[u]. Outputs: the keys of each device, D lists, in the order of `keys`; the
  // positions of these keys in `keys`, D lists; the position of each key in the joined lists.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(0));
    const auto devices = static_cast<size_t>(devices_);
    std::vector<std::vector<int64_t>> device_keys(devices);
    std::vector<std::vector<int32_t>> positions(devices);
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t key = keys.data<int64_t>()[i];
      const uint32_t device = OwnerOf(key, static_cast<uint32_t>(devices_));
      device_keys[device].push_back(key);
      positions[device].push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> order(keys.size());
    int32_t next = 0;
    for (size_t d = 0; d < devices; ++d) {
      for (const int32_t position : positions[d]) order[static_cast<size_t>(position)] = next++;
      const auto output = static_cast<int>(d);
      TSPS_RETURN_IF_ERROR(context.OutputVector(output, device_keys[d]));
      TSPS_RETURN_IF_ERROR(context.OutputVector(devices_ + output, positions[d]));
    }
    return context.OutputVector(2 * devices_, order);
  }

 private:
  int devices_ = 0;
};

// Inputs: cache, rows, gradients: the number of rows that went to another device, and of gradients
// that came from one.
Status Exchanged(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceCache> cache,
                        DeviceCaches::Get().Of(context, 0));
  TSPS_ASSIGN_OR_RETURN(const int64_t rows, context.Scalar<int64_t>(1, "rows"));
  TSPS_ASSIGN_OR_RETURN(const int64_t gradients, context.Scalar<int64_t>(2, "gradients"));
  cache->pulled += static_cast<uint64_t>(rows);
  cache->pushed += static_cast<uint64_t>(gradients);
  return Status();
}

}  // namespace

void RegisterCacheDevicesKernels() {
  RegisterKernel<DivideKernel>("TspsCacheDivide");
  RegisterKernel<FunctionKernel<Exchanged>>("TspsCacheExchanged");
}

}  // namespace tsps
