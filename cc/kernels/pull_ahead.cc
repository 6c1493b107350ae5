// Ops that look ahead in sharded tables (core/exchange/rows_ahead.h). Datasets run
// TspsPullAnnounce; steps run TspsPullLooking, TspsPullCheck and TspsPullStepMade. TspsPullCounters
// returns counters.
#include <string>
#include <vector>

#include "core/gradients/dedupe.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/step.h"

namespace tsps {
namespace {

// Inputs: path (of the group), table, keys, dataset, index, batches. The op does not read the
// group, because a dataset must not block one of TensorFlow's threads while a step is being
// written.
Status PullAnnounce(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const int64_t table, context.Scalar<int64_t>(1, "table"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  TSPS_ASSIGN_OR_RETURN(const Tensor ids, context.Input(2, 1, "keys"));
  TSPS_ASSIGN_OR_RETURN(const int64_t dataset, context.Scalar<int64_t>(3, "dataset"));
  TSPS_ASSIGN_OR_RETURN(const int64_t index, context.Scalar<int64_t>(4, "index"));
  TSPS_ASSIGN_OR_RETURN(const int64_t batches, context.Scalar<int64_t>(5, "batches"));
  std::vector<int32_t> inverse(ids.size());
  RowsAhead& ahead = owner->pulls().ahead(static_cast<int>(table));
  ahead.Announce(dataset, index, static_cast<size_t>(batches),
                 Dedupe({{ids.data<int64_t>(), ids.size(), inverse.data()}}));
  return Status();
}

// Inputs: path. Outputs: looking.
Status PullLooking(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  return context.OutputScalar(0, owner->pulls().looking());
}

class PullCheckKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    return Status();
  }

  // Inputs: keys T, paths T, uuids T. Outputs: verdict.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, tables_, 2 * tables_, tables_));
    RowPulls& pulls = tables->front().owner->pulls();
    Status verdict;
    for (int t = 0; pulls.looking() && verdict.ok() && t < tables_; ++t) {
      TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(t));
      const TableHandle& table = (*tables)[static_cast<size_t>(t)];
      int64_t missing = 0;
      if (pulls.ahead(table.table).LookedUp(keys.data<int64_t>(), keys.size(), &missing)) continue;
      verdict = Error(Code::kFailedPrecondition, "table ", table.path(), " has a gradient of key ",
                      missing,
                      ", which was not looked up since the last step. tsps.lookahead fetches rows "
                      "one batch ahead, so each gradient must be applied in the step after its "
                      "lookup. Train this model without tsps.lookahead");
    }
    return context.OutputVector(0, EncodeVerdict(verdict));
  }

 private:
  int tables_ = 0;
  TableCache cache_;
};

class PullStepMadeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    return Status();
  }

  // Inputs: step, paths T, uuids T. Outputs: step.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(0, "step"));
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 1, 1 + tables_, tables_));
    RowPulls& pulls = tables->front().owner->pulls();
    for (const TableHandle& table : *tables) pulls.ahead(table.table).StepMade();
    pulls.StepMade();
    return context.OutputScalar(0, step);
  }

 private:
  int tables_ = 0;
  TableCache cache_;
};

// Inputs: path. Outputs: announced, dropped, looked_up, ahead, fetched.
Status PullCounters(const KernelContext& context) {
  TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
  const RowsAhead::Counters counters = owner->pulls().counters();
  int output = 0;
  for (const uint64_t count : {counters.announced, counters.dropped, counters.looked_up,
                               counters.ahead, counters.fetched}) {
    TSPS_RETURN_IF_ERROR(context.OutputScalar(output++, static_cast<int64_t>(count)));
  }
  return Status();
}

}  // namespace

void RegisterPullAheadKernels() {
  RegisterKernel<FunctionKernel<PullAnnounce>>("TspsPullAnnounce");
  RegisterKernel<FunctionKernel<PullLooking>>("TspsPullLooking");
  RegisterKernel<PullCheckKernel>("TspsPullCheck");
  RegisterKernel<PullStepMadeKernel>("TspsPullStepMade");
  RegisterKernel<FunctionKernel<PullCounters>>("TspsPullCounters");
}

}  // namespace tsps
