// TspsPack and TspsUnpackMerge: they convert sparse gradients to and from the wire format
// (core/wire/wire.h).
#include "core/wire/wire.h"

#include <string>
#include <vector>

#include "core/wire/wire_buffers.h"
#include "kernels/gradients.h"
#include "kernels/kernel.h"
#include "kernels/process.h"

namespace tsps {
namespace {

class PackKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(const std::string wire, attributes.String("wire"));
    TSPS_ASSIGN_OR_RETURN(type_, WireTypeFromName(wire));
    return Status();
  }

  // Inputs: keys T, grads T, counts T. Outputs: buffer.
  Status Compute(const KernelContext& context) {
    GradientInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, tables_, /*with_counts=*/true));
    std::vector<WireSet> sets;
    for (const TableSets& table : inputs.tables) {
      const GradientSet& set = table.sets.front();
      sets.push_back({set.keys, set.counts, set.rows, set.n, table.dim});
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    return PackIntoOutput(context, 0, sets, type_, *executor);
  }

 private:
  int tables_ = 0;
  WireType type_ = WireType::kFloat32;
};

class UnpackMergeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(const std::string reduction, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction_, ReductionFromName(reduction));
    return Status();
  }

  // Inputs: buffers (padded, one after another), world_size. Outputs: keys T, grads T, counts T.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor buffers, context.Input(0, 1, "buffers"));
    TSPS_ASSIGN_OR_RETURN(const int32_t world_size, context.Scalar<int32_t>(1, "world_size"));
    ProcessWireCounters().bytes_unpacked.fetch_add(buffers.size(), std::memory_order_relaxed);
    const std::shared_ptr<Executor> executor = SharedExecutor();
    WireBuffers unpacked;
    TSPS_RETURN_IF_ERROR(unpacked.Unpack(buffers.data<const uint8_t>(), buffers.size(),
                                         static_cast<size_t>(tables_), /*splits=*/1, *executor));
    return MergeIntoOutputs(context, unpacked.tables(), reduction_, world_size, *executor);
  }

 private:
  int tables_ = 0;
  Reduction reduction_ = Reduction::kSum;
};

}  // namespace

void RegisterWireKernels() {
  RegisterKernel<PackKernel>("TspsPack");
  RegisterKernel<UnpackMergeKernel>("TspsUnpackMerge");
}

}  // namespace tsps
