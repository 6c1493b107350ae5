#include "kernels/node_merge.h"

#include <utility>

#include "kernels/process.h"

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
  call.operation = attributes.operation;
  call.reduction = attributes.reduction;
  TSPS_ASSIGN_OR_RETURN(call.world_size, context.Scalar<int32_t>(2 * n_tables, "world_size"));
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(2 * n_tables + 1, "path"));
  TSPS_ASSIGN_OR_RETURN(call.step, context.Scalar<int64_t>(2 * n_tables + 2, "step"));
  TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(2 * n_tables + 3, "timeout_s"));
  if (!(call.timeout_s >= 0)) {
    return Error(Code::kInvalidArgument, "timeout_s must be >= 0. Received: ", call.timeout_s);
  }
  TSPS_RETURN_IF_ERROR(gradients.Read(context, n_tables, /*with_counts=*/false));
  for (const TableSets& table : gradients.tables) {
    const GradientSet& set = table.sets.front();
    tables.push_back({set.keys, set.rows, set.n, table.dim});
  }
  TSPS_ASSIGN_OR_RETURN(owner, GroupRegistry::Get().Open(path));
  call.cancelled = &owner->closed();
  return Status();
}

Status StepUpdates::Read(const KernelContext& context, int first, int n_tables,
                         const OpenGroup& owner, TableCache* cache) {
  TSPS_ASSIGN_OR_RETURN(tables_, cache->Resolve(context, first, first + n_tables, n_tables));
  for (int t = 0; t < n_tables; ++t) {
    const TableHandle& table = (*tables_)[static_cast<size_t>(t)];
    if (table.owner.get() != &owner) {
      return Error(Code::kInvalidArgument, "table ", table.path(), " is not of group ",
                   owner.group().path());
    }
    TSPS_ASSIGN_OR_RETURN(Tensor hyper, context.Input(first + 2 * n_tables + t, 1, "hyper"));
    TableUpdate update;
    update.table = table.table;
    update.hyper = hyper.data<float>();
    update.n_hyper = hyper.size();
    updates_.push_back(std::move(update));
    hypers_.push_back(std::move(hyper));
  }
  return Status();
}

Status StepUpdates::CheckDim(size_t table, size_t dim) const {
  const TableHandle& handle = (*tables_)[table];
  if (static_cast<int64_t>(dim) == handle.config().dim) return Status();
  return Error(Code::kInvalidArgument, "grads of table ", handle.path(), " must have ",
               handle.config().dim, " columns. Received: ", dim);
}

Status StepUpdates::Apply(OpenGroup& owner, int64_t step,
                          const std::vector<ReducedGradients>& gradients) {
  if (step < 1) return Error(Code::kInvalidArgument, "step must be >= 1. Received: ", step);
  if (gradients.size() != updates_.size()) {
    return Error(Code::kInvalidArgument, "step ", step, " is of ", gradients.size(),
                 " tables. Expected: ", updates_.size());
  }
  std::vector<std::vector<int64_t>> keys(gradients.size());
  for (size_t t = 0; t < gradients.size(); ++t) {
    TSPS_RETURN_IF_ERROR(CheckDim(t, gradients[t].dim()));
    keys[t].reserve(gradients[t].n());
    for (const GradientSet& set : gradients[t].sets()) {
      keys[t].insert(keys[t].end(), set.keys, set.keys + set.n);
      updates_[t].pieces.push_back({set.rows, set.n});
    }
    updates_[t].keys = keys[t].data();
    updates_[t].n = keys[t].size();
  }
  const std::shared_ptr<Executor> executor = WriterExecutor();
  return owner.Write([&](GroupWriter& writer) {
    return writer.ApplyStep(static_cast<uint64_t>(step), updates_, *executor);
  });
}

}  // namespace tsps
