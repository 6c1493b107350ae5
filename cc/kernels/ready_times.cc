// TspsReady and TspsReadyTimes: when the gradients of a step become ready, one after another.
//
// A profile is a name and a list of (gradient, time). It is apart from the timeline, which is the
// user's to start and stop.
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
  static constexpr size_t kMost = 1 << 20;  // that a profile holds; more are not recorded

  // Never destroyed: TensorFlow's threads may run kernels at exit.
  static ReadyTimes& Get() {
    static ReadyTimes* const times = new ReadyTimes;
    return *times;
  }

  void Add(const std::string& profile, int64_t gradient) {
    const int64_t now = static_cast<int64_t>(NowNs());
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t>& found = profiles_[profile];
    if (found.size() < 2 * kMost) found.insert(found.end(), {gradient, now});
  }

  // What was recorded since the last call, pairs one after another.
  std::vector<int64_t> Take(const std::string& profile) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> found;
    const auto place = profiles_.find(profile);
    if (place != profiles_.end()) {
      found = std::move(place->second);
      profiles_.erase(place);
    }
    return found;
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
