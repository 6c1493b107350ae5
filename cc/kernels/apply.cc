// TspsApply: one optimizer step over several tables of a group, published at once.
//
// TspsMakeStep, TspsPrepareStep, TspsDecideStep and TspsCheckStep do the same for a job, where all
// ranks must know whether a step is made before any of them continues (step.h).
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/async_kernel.h"
#include "kernels/group_registry.h"
#include "kernels/kernel.h"
#include "kernels/step.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

class ApplyKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    return Status();
  }

  // Inputs: step, paths T, uuids T, keys T, grads T, hyper T, optimizer. Outputs: step.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(0, "step"));
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 1, 1 + tables_, tables_));
    OpenGroup& owner = *tables->front().owner;
    StepUpdates updates;
    TSPS_RETURN_IF_ERROR(
        updates.ReadAll(context, 1, tables_, /*with_counts=*/false, owner, &cache_));
    TSPS_RETURN_IF_ERROR(owner.Write([&](GroupWriter& writer) -> Status {
      TSPS_RETURN_IF_ERROR(updates.Prepare(writer, step));
      writer.Publish();
      return Status();
    }));
    return context.OutputScalar(0, step);
  }

 private:
  int tables_ = 0;
  TableCache cache_;
};

class MakeStepKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(operation_, attributes.String("operation"));
    return Status();
  }

  // Inputs: path, step, timeout_s, paths T, uuids T, keys T, grads T, counts T, hyper T, optimizer,
  // digest. Outputs: verdict.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    std::shared_ptr<OpenGroup> owner;
    const Status opened = NoThrow([&]() -> Status {
      TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
      TSPS_ASSIGN_OR_RETURN(owner, GroupRegistry::Get().Open(path));
      return Status();
    });
    if (!opened.ok()) return done(opened);
    const std::shared_ptr<NodeExchange> exchange = owner->exchange();
    const auto make = [this, context, owner, exchange](const ReportDone& report) {
      return Make(context, report, *owner, exchange.get());
    };
    if (exchange != nullptr) {
      RunOnWaiter(done, make);
    } else {
      RunHere(done, make);  // another thread would cost more than it gains
    }
  }

 private:
  Status Make(const KernelContext& context, const ReportDone& report, OpenGroup& owner,
              NodeExchange* exchange) {
    MergeCall call;
    call.operation = operation_;
    TSPS_ASSIGN_OR_RETURN(call.step, context.Scalar<int64_t>(1, "step"));
    TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(2, "timeout_s"));
    call.cancelled = &owner.closed();
    TSPS_ASSIGN_OR_RETURN(const int64_t digest, context.Scalar<int64_t>(4 + 6 * tables_, "digest"));
    Status agreed;
    if (exchange != nullptr) {
      exchange->verdicts().PostStatement(call.step, static_cast<uint64_t>(digest),
                                         owner.TakeObjection());
      if (!exchange->IsLeader()) return OutputLeadersVerdict(context, *exchange, call);
      const Status received = exchange->verdicts().AwaitStatements(call, &agreed);
      if (!received.ok()) agreed = received;
    }
    const WorkSpan span("apply");
    StepUpdates updates;
    const Status read =
        agreed.ok() ? updates.ReadAll(context, 3, tables_, /*with_counts=*/true, owner, &cache_)
                    : agreed;
    return MakeStep(context, report, call.step, owner, exchange, [&](GroupWriter& writer) {
      return read.ok() ? updates.Prepare(writer, call.step) : read;
    });
  }

  int tables_ = 0;
  std::string operation_;
  TableCache cache_;
};

class PrepareStepKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(voters_, attributes.Int("voters"));
    return Status();
  }

  // Inputs: path, step, paths T, uuids T, keys T, grads T, counts T, hyper T, optimizer. Outputs:
  // verdict.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("prepare");
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(1, "step"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    const auto updates = std::make_shared<StepUpdates>();
    const Status verdict = NoThrow([&]() -> Status {
      TSPS_RETURN_IF_ERROR(
          updates->ReadAll(context, 2, tables_, /*with_counts=*/true, *owner, &cache_));
      return owner->Prepare([&](GroupWriter& writer) { return updates->Prepare(writer, step); },
                            updates, static_cast<uint32_t>(voters_));
    });
    return context.OutputVector(0, EncodeVerdict(verdict));
  }

 private:
  int tables_ = 0;
  int voters_ = 1;
  TableCache cache_;
};

class DecideStepKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, verdicts of all nodes. Outputs: verdict.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [context](const ReportDone& report) { return Decide(context, report); });
  }

 private:
  static Status Decide(const KernelContext& context, const ReportDone& report) {
    const WorkSpan span("apply");
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const Tensor verdicts, context.Input(1, 1, "verdicts"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    const Status verdict = DecodeVerdicts(verdicts.data<uint8_t>(), verdicts.size());
    TSPS_RETURN_IF_ERROR(context.OutputVector(0, EncodeVerdict(verdict)));
    return owner->Decide(verdict.ok(), report);
  }
};

class CheckStepKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: step, verdict. Outputs: step.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(0, "step"));
    TSPS_ASSIGN_OR_RETURN(const Tensor verdict, context.Input(1, 1, "verdict"));
    TSPS_RETURN_IF_ERROR(DecodeVerdicts(verdict.data<uint8_t>(), verdict.size()));
    return context.OutputScalar(0, step);
  }
};

}  // namespace

void RegisterApplyKernels() {
  RegisterKernel<ApplyKernel>("TspsApply");
  RegisterAsyncKernel<MakeStepKernel>("TspsMakeStep");
  RegisterKernel<PrepareStepKernel>("TspsPrepareStep");
  RegisterAsyncKernel<DecideStepKernel>("TspsDecideStep");
  RegisterKernel<CheckStepKernel>("TspsCheckStep");
}

}  // namespace tsps
