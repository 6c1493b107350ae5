// TspsPooledLookup, and its gradients TspsPooledSum and TspsPooledWeightGrad.
#include <algorithm>
#include <vector>

#include "core/gradients/bags.h"
#include "core/gradients/pooled_weight_gradient.h"
#include "kernels/features.h"
#include "kernels/kernel.h"
#include "kernels/pooled_gradients.h"
#include "kernels/process.h"

namespace tsps {
namespace {

class PooledLookupKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(in_step_, attributes.Bool("in_step"));
    return features_.Init(attributes, true);
  }

  // Inputs: ids N, splits N, weights N, paths T, uuids T, carriers T. Outputs: pooled N, keys T,
  // inverses N.
  Status Compute(const KernelContext& context) {
    const int n = features_.n, t = features_.tables;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 3 * n, 3 * n + t, t, /*accept_served=*/true));
    TSPS_RETURN_IF_ERROR(CheckCarriers(context, *tables, 3 * n + 2 * t));
    for (int f = 0; f < n; ++f) {
      TSPS_RETURN_IF_ERROR(context.Input(f, 1, "ids").status());
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    UniqueKeys unique;
    bool refused = false;
    TSPS_RETURN_IF_ERROR(
        unique.Init(context, features_, *tables, n, n + t, *executor, in_step_, &refused));

    std::vector<Bags> bags;
    std::vector<Tensor> pooled;
    for (int f = 0; f < n; ++f) {
      TSPS_ASSIGN_OR_RETURN(
          Bags feature, Bags::Read(context, features_, f, n + f, 2 * n + f, unique.ids(f).size()));
      feature.span.inverse = unique.inverse(f);
      TSPS_ASSIGN_OR_RETURN(Tensor output,
                            context.Output<float>(f, {static_cast<int64_t>(feature.span.n_bags),
                                                      features_.In(*tables, f).config().dim}));
      if (refused) std::fill_n(output.data<float>(), output.size(), 0.0f);
      bags.push_back(std::move(feature));
      pooled.push_back(std::move(output));
    }
    if (refused) return Status();
    std::vector<RowGather> gathers = unique.Gathers(*tables);
    TSPS_RETURN_IF_ERROR(ReadRows(*tables, gathers, *executor, [&](size_t table) {
      const auto dim = static_cast<size_t>((*tables)[table].config().dim);
      for (const int f : features_.features_of[table]) {
        const size_t i = static_cast<size_t>(f);
        PoolBags(bags[i].span, gathers[table].Floats(*executor), dim, pooled[i].data<float>(),
                 *executor);
      }
    }));
    unique.Remember(*tables, gathers);
    return Status();
  }

 private:
  Features features_;
  bool in_step_ = false;
  TableCache cache_;
};

class PooledSumKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, true); }

  // Inputs: those of PooledGradients. Outputs: sums T.
  Status Compute(const KernelContext& context) {
    PooledGradients call;
    TSPS_RETURN_IF_ERROR(call.Init(context, features_));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    const size_t tables = call.keys.size();
    std::vector<std::vector<PooledGradientSpan>> spans(tables);
    std::vector<size_t> sizes(tables);
    std::vector<Tensor> sums;
    for (size_t t = 0; t < tables; ++t) {
      for (const int f : features_.features_of[t]) {
        const size_t i = static_cast<size_t>(f);
        spans[t].push_back({call.bags[i].span, call.grads[i].data<float>()});
        sizes[t] += call.inverses[i].size();
      }
      const int number = static_cast<int>(t);
      TSPS_ASSIGN_OR_RETURN(const int64_t dim, features_.CommonWidth(number, call.grads));
      TSPS_ASSIGN_OR_RETURN(
          Tensor sum,
          context.Output<float>(number, {static_cast<int64_t>(call.keys[t].size()), dim}));
      sums.push_back(std::move(sum));
    }
    std::vector<Status> statuses(tables);
    ForEachItem(sizes, *executor, [&](size_t t) {
      statuses[t] =
          PooledSegmentSum(spans[t], call.keys[t].size(), static_cast<size_t>(sums[t].dim(1)),
                           sums[t].data<float>(), *executor);
    });
    return FirstError(statuses);
  }

 private:
  Features features_;
};

class PooledWeightGradKernel {
 public:
  Status Init(const Attributes& attributes) { return features_.Init(attributes, true); }

  // Inputs: those of PooledGradients, then paths T, uuids T, carriers T. Outputs: weight_grads N.
  Status Compute(const KernelContext& context) {
    const int n = features_.n, t = features_.tables;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 4 * n + t, 4 * n + 2 * t, t));
    TSPS_RETURN_IF_ERROR(CheckCarriers(context, *tables, 4 * n + 3 * t));
    PooledGradients call;
    TSPS_RETURN_IF_ERROR(call.Init(context, features_));
    const std::shared_ptr<Executor> executor = SharedExecutor();

    std::vector<RowGather> gathers;
    for (int i = 0; i < t; ++i) {
      const TableHandle& table = (*tables)[static_cast<size_t>(i)];
      const Tensor& keys = call.keys[static_cast<size_t>(i)];
      gathers.emplace_back(table.known, table.table, keys.data<int64_t>(), keys.size());
    }
    std::vector<Tensor> outputs;
    for (int f = 0; f < n; ++f) {
      const size_t i = static_cast<size_t>(f);
      TSPS_RETURN_IF_ERROR(call.Check(features_, f, features_.In(*tables, f).config().dim));
      TSPS_ASSIGN_OR_RETURN(Tensor output, context.Output<float>(f, call.bags[i].weights.shape()));
      outputs.push_back(std::move(output));
    }
    return ReadRows(*tables, gathers, *executor, [&](size_t table) {
      for (const int f : features_.features_of[table]) {
        const size_t i = static_cast<size_t>(f);
        if (call.bags[i].span.weights == nullptr) continue;
        PooledWeightGradient(call.bags[i].span, gathers[table].Floats(*executor),
                             static_cast<size_t>(call.grads[i].dim(1)), call.grads[i].data<float>(),
                             outputs[i].data<float>(), *executor);
      }
    });
  }

 private:
  Features features_;
  TableCache cache_;
};

}  // namespace

void RegisterPooledKernels() {
  RegisterKernel<PooledLookupKernel>("TspsPooledLookup");
  RegisterKernel<PooledSumKernel>("TspsPooledSum");
  RegisterKernel<PooledWeightGradKernel>("TspsPooledWeightGrad");
}

}  // namespace tsps
