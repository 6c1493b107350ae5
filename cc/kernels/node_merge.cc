#include "kernels/node_merge.h"

#include "kernels/timeline.h"

namespace tsps {

Status MergeAttributes::Init(const Attributes& attributes) {
  TSPS_ASSIGN_OR_RETURN(tables, attributes.Int("T"));
  TSPS_ASSIGN_OR_RETURN(operation, attributes.String("operation"));
  TSPS_ASSIGN_OR_RETURN(const std::string name, attributes.String("reduction"));
  TSPS_ASSIGN_OR_RETURN(reduction, ReductionFromName(name));
  return Status();
}

Status MergeInputs::Read(const KernelContext& context, const MergeAttributes& attributes) {
  const int n_tables = attributes.tables;
  TSPS_RETURN_IF_ERROR(Timeline::Get().MayBegin(attributes.operation));
  call.operation = attributes.operation;
  call.reduction = attributes.reduction;
  TSPS_ASSIGN_OR_RETURN(call.world_size, context.Scalar<int32_t>(3 * n_tables, "world_size"));
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(3 * n_tables + 1, "path"));
  TSPS_ASSIGN_OR_RETURN(call.step, context.Scalar<int64_t>(3 * n_tables + 2, "step"));
  TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(3 * n_tables + 3, "timeout_s"));
  if (!(call.timeout_s >= 0)) {
    return Error(Code::kInvalidArgument, "timeout_s must be >= 0. Received: ", call.timeout_s);
  }
  TSPS_RETURN_IF_ERROR(gradients.Read(context, n_tables, /*with_counts=*/true));
  for (const TableSets& table : gradients.tables) {
    const GradientSet& set = table.sets.front();
    tables.push_back({set.keys, set.counts, set.rows, set.n, table.dim});
  }
  TSPS_ASSIGN_OR_RETURN(owner, GroupRegistry::Get().Open(path));
  call.cancelled = &owner->closed();
  return Status();
}

}  // namespace tsps
