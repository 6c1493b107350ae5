// TspsLookup: looks up the rows of the ids of N features in T tables of one group.
#include <algorithm>
#include <vector>

#include "kernels/features.h"
#include "kernels/kernel.h"
#include "kernels/process.h"
#include "kernels/timeline.h"

namespace tsps {
namespace {

class LookupKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(in_step_, attributes.Bool("in_step"));
    return features_.Init(attributes, false);
  }

  // Inputs: ids N, paths T, uuids T, carriers T. Outputs: rows N, keys T, inverses N.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("lookup");
    const int n = features_.n, t = features_.tables;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, cache_.Resolve(context, n, n + t, t));
    TSPS_RETURN_IF_ERROR(CheckCarriers(context, *tables, n + 2 * t));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    UniqueKeys unique;
    bool refused = false;
    TSPS_RETURN_IF_ERROR(
        unique.Init(context, features_, *tables, n, n + t, *executor, in_step_, &refused));

    std::vector<Tensor> rows;
    for (int f = 0; f < n; ++f) {
      std::vector<int64_t> shape = unique.ids(f).shape();
      shape.push_back(features_.In(*tables, f).config().dim);
      TSPS_ASSIGN_OR_RETURN(Tensor output, context.Output<float>(f, shape));
      if (refused) std::fill_n(output.data<float>(), output.size(), 0.0f);
      rows.push_back(std::move(output));
    }
    if (refused) return Status();
    std::vector<RowGather> gathers = unique.Gathers(*tables);
    TSPS_RETURN_IF_ERROR(ReadRows(features_, *tables, gathers, *executor, [&](int f) {
      features_.In(gathers, f)
          .CopyRows(unique.inverse(f), unique.ids(f).size(),
                    rows[static_cast<size_t>(f)].data<float>(), *executor);
    }));
    unique.Remember(*tables, gathers);
    return Status();
  }

 private:
  Features features_;
  bool in_step_ = false;
  TableCache cache_;
};

}  // namespace

void RegisterLookupKernels() { RegisterKernel<LookupKernel>("TspsLookup"); }

}  // namespace tsps
