// TspsReady and TspsReadyTimes: they record and return the times at which the gradients of a step
// become ready.
//
// A profile is a name and a list of (gradient, time). It is separate from the timeline, which the
// user starts and stops.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "kernels/kernel.h"

namespace tsps {
namespace {

// Thread-safe.
class ReadyTimes {
 public:
  static constexpr size_t kMost = 1 << 20;  // the largest number of times of a profile

  // Returns the object, which is never destroyed, because TensorFlow's threads may run kernels at
  // exit.
  static ReadyTimes& Get() {
    static ReadyTimes* const times = new ReadyTimes;
    return *times;
  }

  void Add(const std::string& profile, int64_t gradient) {
    const int64_t now = static_cast<int64_t>(NowNs());
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t>& times = profiles_[profile];
    if (times.size() < 2 * kMost) times.insert(times.end(), {gradient, now});
  }

  // Returns the pairs that were recorded since the last call, one after another.
  std::vector<int64_t> Take(const std::string& profile) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> times;
    const auto entry = profiles_.find(profile);
    if (entry != profiles_.end()) {
      times = std::move(entry->second);
      profiles_.erase(entry);
    }
    return times;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<int64_t>> profiles_;
};

class ReadyKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(profile_, attributes.String("profile"));
    TSPS_ASSIGN_OR_RETURN(gradient_, attributes.Int("gradient"));
    return Status();
  }

  // Inputs: value, variable. Outputs: the value.
  Status Compute(const KernelContext& context) {
    ReadyTimes::Get().Add(profile_, gradient_);
    return context.Forward(0, 0);
  }

 private:
  std::string profile_;
  int64_t gradient_ = 0;
};

class ReadyTimesKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(profile_, attributes.String("profile"));
    return Status();
  }

  // Outputs: gradient, time, gradient, time, ...
  Status Compute(const KernelContext& context) {
    return context.OutputVector(0, ReadyTimes::Get().Take(profile_));
  }

 private:
  std::string profile_;
};

}  // namespace

void RegisterReadyTimesKernels() {
  RegisterKernel<ReadyKernel>("TspsReady");
  RegisterKernel<ReadyTimesKernel>("TspsReadyTimes");
}

}  // namespace tsps
