// TspsCountOccurrences and TspsTakeOccurrences: how often the keys of tables with admission occur
// in the training of this process (core/gradients/occurrences.h).
//
// The backward pass of a lookup counts, and the step takes the counts. They do not travel with the
// gradient, because the program may change it between the two, or join several.
#include "core/gradients/occurrences.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel.h"

namespace tsps {
namespace {

// Returns the occurrences of a table's keys in this process. They are never destroyed, because
// TensorFlow's threads may still run kernels at exit.
Occurrences& OccurrencesOfTable(const std::string& uuid) {
  static std::mutex mutex;
  static auto& tables = *new std::map<std::string, Occurrences>();
  const std::lock_guard<std::mutex> lock(mutex);
  return tables[uuid];
}

class CountOccurrencesKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(features_, attributes.Int("N"));
    TSPS_ASSIGN_OR_RETURN(const std::string uuid, attributes.String("uuid"));
    occurrences_ = &OccurrencesOfTable(uuid);
    return Status();
  }

  // Inputs: keys, inverses N. Outputs: keys.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(0));
    std::vector<Tensor> inverses;
    std::vector<Occurrences::Ids> ids;
    for (int f = 0; f < features_; ++f) {
      TSPS_ASSIGN_OR_RETURN(Tensor inverse, context.Input(1 + f));
      ids.push_back({inverse.data<int32_t>(), inverse.size()});
      inverses.push_back(std::move(inverse));
    }
    if (!occurrences_->Add(keys.data<int64_t>(), keys.size(), ids)) {
      return Error(Code::kInvalidArgument, "inverses must be positions in ", keys.size(), " keys");
    }
    return context.Forward(0, 0);
  }

 private:
  int features_ = 0;
  Occurrences* occurrences_ = nullptr;
};

class TakeOccurrencesKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(const std::string uuid, attributes.String("uuid"));
    occurrences_ = &OccurrencesOfTable(uuid);
    return Status();
  }

  // Inputs: keys. Outputs: counts.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(0));
    TSPS_ASSIGN_OR_RETURN(const Tensor counts,
                          context.Output<int32_t>(0, {static_cast<int64_t>(keys.size())}));
    occurrences_->Take(keys.data<int64_t>(), keys.size(), counts.data<int32_t>());
    return Status();
  }

 private:
  Occurrences* occurrences_ = nullptr;
};

}  // namespace

void RegisterOccurrenceKernels() {
  RegisterKernel<CountOccurrencesKernel>("TspsCountOccurrences");
  RegisterKernel<TakeOccurrencesKernel>("TspsTakeOccurrences");
}

}  // namespace tsps
