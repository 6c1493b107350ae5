// TspsSlowCopy: a copy that takes as long as over a link with a given bandwidth, for measurements
// on machines without such a link.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/async_kernel.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

using Clock = std::chrono::steady_clock;

// One direction of the link. Concurrent transfers run one after another.
class Direction {
 public:
  // Starts a transfer, and returns the time at which it ends.
  Clock::time_point Send(size_t bytes, double bytes_per_second) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::chrono::duration<double> length(static_cast<double>(bytes) / bytes_per_second);
    free_at_ =
        std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(length);
    return free_at_;
  }

 private:
  std::mutex mutex_;
  Clock::time_point free_at_;
};

Direction& DirectionOf(const std::string& name) {
  static auto* const down = new Direction;
  static auto* const up = new Direction;
  return name == "up" ? *up : *down;
}

class SlowCopyKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: rows, bytes_per_second, direction ("down" or "up"). Outputs: the rows.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [context]() -> Status {
      TSPS_ASSIGN_OR_RETURN(const Tensor rows, context.Input(0));
      TSPS_ASSIGN_OR_RETURN(const float rate, context.Scalar<float>(1, "bytes_per_second"));
      TSPS_ASSIGN_OR_RETURN(const std::string direction, context.String(2, "direction"));
      if (!(rate > 0)) {
        return Error(Code::kInvalidArgument, "bytes_per_second must be positive. Received: ", rate);
      }
      TSPS_ASSIGN_OR_RETURN(const Tensor copy, context.Output<float>(0, rows.shape()));
      const size_t bytes = rows.size() * sizeof(float);
      const Clock::time_point end = DirectionOf(direction).Send(bytes, static_cast<double>(rate));
      const WorkSpan span(direction == "up" ? "link up" : "link down");
      std::memcpy(copy.data<float>(), rows.data<float>(), bytes);
      std::this_thread::sleep_until(end);
      return Status();
    });
  }
};

}  // namespace

void RegisterSlowLinkKernels() { RegisterAsyncKernel<SlowCopyKernel>("TspsSlowCopy"); }

}  // namespace tsps
