// TspsWaitStep: waits until a step is published. It is asynchronous, because a wait that blocks one
// of TensorFlow's threads can starve the op that would end it (always with one inter-op thread).
#include <algorithm>

#include "kernels/async_kernel.h"
#include "kernels/group_registry.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

class WaitStepKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  void ComputeAsync(const KernelContext& context, const Done& done) {
    const Status status = NoThrow([&] { return Start(context, done); });
    if (!status.ok()) done(status);
  }

 private:
  // Returns an error, or calls `done` now or later.
  static Status Start(const KernelContext& context, const Done& done) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(1, "step"));
    TSPS_ASSIGN_OR_RETURN(const float timeout_s, context.Scalar<float>(2, "timeout_s"));
    if (step < 0) return Error(Code::kInvalidArgument, "step must be >= 0. Received: ", step);
    if (!(timeout_s >= 0)) {
      return Error(Code::kInvalidArgument, "timeout_s must be >= 0. Received: ", timeout_s);
    }
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    owner->ShowStep(step);
    const auto finish = [context, step](const Status& reached) {
      return reached.ok() ? context.OutputScalar(0, step) : reached;
    };
    if (owner->group().step() >= static_cast<uint64_t>(step)) {
      TSPS_RETURN_IF_ERROR(finish(Status()));
      done(Status());
      return Status();
    }
    // Infinity means "as long as the leader lives", but its nanoseconds would overflow.
    const double timeout = std::min(static_cast<double>(timeout_s), 1e9);
    Waiters::Get().Run([owner, step, timeout, finish, done] {
      done(finish(
          owner->group().WaitForStep(static_cast<uint64_t>(step), timeout, &owner->closed())));
    });
    return Status();
  }
};

}  // namespace

void RegisterWaitKernels() { RegisterAsyncKernel<WaitStepKernel>("TspsWaitStep"); }

}  // namespace tsps
