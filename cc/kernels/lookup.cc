// TspsLookup and TspsReadRows: look up the rows of the ids of N features in T tables of one group.
//
// TspsLookup serves training: it also finds the unique keys, which the backward pass and the step
// need. TspsReadRows serves all else, and does not spend time on them.
#include <algorithm>
#include <limits>
#include <utility>
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
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, n, n + t, t, /*accept_served=*/true));
    TSPS_RETURN_IF_ERROR(CheckCarriers(context, *tables, n + 2 * t));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    UniqueKeys unique;
    bool refused = false;
    TSPS_RETURN_IF_ERROR(
        unique.Init(context, features_, *tables, n, n + t, *executor, in_step_, &refused));

    std::vector<Tensor> rows;
    for (int f = 0; f < n; ++f) {
      TSPS_ASSIGN_OR_RETURN(Tensor output,
                            OutputRows(context, f, unique.ids(f), features_.In(*tables, f)));
      if (refused) std::fill_n(output.data<float>(), output.size(), 0.0f);
      rows.push_back(std::move(output));
    }
    if (refused) return Status();
    std::vector<RowGather> gathers = unique.Gathers(*tables);
    TSPS_RETURN_IF_ERROR(ReadRows(*tables, gathers, *executor, [&](size_t table) {
      for (const int f : features_.features_of[table]) {
        gathers[table].CopyRows(unique.inverse(f), unique.ids(f).size(),
                                rows[static_cast<size_t>(f)].data<float>(), *executor);
      }
    }));
    unique.Remember(*tables, gathers);
    ShowCounters(*tables);
    return Status();
  }

 private:
  Features features_;
  bool in_step_ = false;
  TableCache cache_;
};

class ReadRowsKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(in_step_, attributes.Bool("in_step"));
    return features_.Init(attributes, false);
  }

  // Inputs: ids N, paths T, uuids T, carriers T. Outputs: rows N.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("read rows");
    const int n = features_.n, t = features_.tables;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, n, n + t, t, /*accept_served=*/true));
    TSPS_RETURN_IF_ERROR(CheckCarriers(context, *tables, n + 2 * t));
    if (!in_step_) TSPS_RETURN_IF_ERROR(ReportObjection(tables->front()));
    std::vector<Tensor> ids;
    size_t n_ids = 0;
    for (int f = 0; f < n; ++f) {
      TSPS_ASSIGN_OR_RETURN(Tensor feature, context.Input(f));
      if (feature.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
        return Error(Code::kInvalidArgument,
                     "a call can look up at most 2147483647 ids of a feature. Received: ",
                     feature.size(), " for feature ", f);
      }
      n_ids += feature.size();
      ids.push_back(std::move(feature));
    }
    TSPS_RETURN_IF_ERROR(CheckIds(features_, *tables, ids));
    LookupCounters::OfProcess().Add(n_ids);
    ShowCounters(*tables);
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<Tensor> rows;
    std::vector<RowGather> gathers;
    for (int f = 0; f < n; ++f) {
      const Tensor& feature = ids[static_cast<size_t>(f)];
      const TableHandle& table = features_.In(*tables, f);
      TSPS_ASSIGN_OR_RETURN(Tensor output, OutputRows(context, f, feature, table));
      if (table.served != nullptr) {  // directly to the output
        TSPS_RETURN_IF_ERROR(table.served->Lookup(feature.data<int64_t>(), feature.size(),
                                                  output.data<float>(), *executor));
        continue;
      }
      rows.push_back(std::move(output));
      gathers.emplace_back(table.known, table.table, feature.data<int64_t>(), feature.size());
    }
    if (gathers.empty()) return Status();
    return ReadRows(*tables, gathers, *executor,
                    [&](size_t f) { gathers[f].CopyAll(rows[f].data<float>(), *executor); });
  }

 private:
  Features features_;
  bool in_step_ = false;
  TableCache cache_;
};

}  // namespace

void RegisterLookupKernels() {
  RegisterKernel<LookupKernel>("TspsLookup");
  RegisterKernel<ReadRowsKernel>("TspsReadRows");
}

}  // namespace tsps
