// TspsJoinExchange and TspsNodeMerge: the ranks of a node merge their sparse gradients in shared
// memory (core/node_exchange.h). Asynchronous: it waits for other ranks.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/node_exchange.h"
#include "kernels/async_kernel.h"
#include "kernels/group_registry.h"
#include "kernels/process.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

class JoinExchangeKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, folder, local_rank, local_size, rank.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::string folder, context.String(1, "folder"));
    TSPS_ASSIGN_OR_RETURN(const int64_t local_rank, context.Scalar<int64_t>(2, "local_rank"));
    TSPS_ASSIGN_OR_RETURN(const int64_t local_size, context.Scalar<int64_t>(3, "local_size"));
    TSPS_ASSIGN_OR_RETURN(const int64_t rank, context.Scalar<int64_t>(4, "rank"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    return owner->JoinExchange(folder, static_cast<int>(local_rank), static_cast<int>(local_size),
                               rank);
  }
};

// The merged gradients of a call's rounds, on their way to outputs keys T, grads T, counts T.
class MergedOutputs {
 public:
  MergedOutputs(const KernelContext& context, const std::vector<Contribution>& tables,
                Executor& executor)
      : context_(context), tables_(tables), executor_(executor), earlier_(tables.size()) {}

  // Rounds but the last are copied, because the shared memory is used again.
  Status Add(const NodeExchange::Merged& merged, bool last) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (last) {
        TSPS_RETURN_IF_ERROR(Write(t, merged[t]));
        continue;
      }
      for (const GradientSet& set : merged[t]) {
        earlier_[t].push_back({{set.keys, set.keys + set.n},
                               {set.counts, set.counts + set.n},
                               {set.rows, set.rows + set.n * tables_[t].dim}});
      }
    }
    return Status();
  }

  // Of a rank that is not the leader: no rows.
  Status WriteNothing() {
    for (size_t t = 0; t < tables_.size(); ++t) TSPS_RETURN_IF_ERROR(Write(t, {}));
    return Status();
  }

 private:
  struct Piece {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::vector<float> rows;
  };

  Status Write(size_t t, const std::vector<GradientSet>& last) {
    size_t n = 0;
    for (const Piece& piece : earlier_[t]) n += piece.keys.size();
    for (const GradientSet& set : last) n += set.n;
    const int table = static_cast<int>(t), tables = static_cast<int>(tables_.size());
    const auto rows = static_cast<int64_t>(n), dim = static_cast<int64_t>(tables_[t].dim);
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context_.Output<int64_t>(table, {rows}));
    TSPS_ASSIGN_OR_RETURN(const Tensor grads, context_.Output<float>(tables + table, {rows, dim}));
    TSPS_ASSIGN_OR_RETURN(const Tensor counts,
                          context_.Output<int32_t>(2 * tables + table, {rows}));
    size_t at = 0;
    const auto copy = [&](const GradientSet& set) {
      std::copy_n(set.keys, set.n, keys.data<int64_t>() + at);
      std::copy_n(set.counts, set.n, counts.data<int32_t>() + at);
      float* const to = grads.data<float>() + at * tables_[t].dim;
      executor_.ParallelFor(set.n * tables_[t].dim, 1 << 16, [&](size_t begin, size_t end) {
        std::copy(set.rows + begin, set.rows + end, to + begin);
      });
      at += set.n;
    };
    for (Piece& piece : earlier_[t]) {
      copy({piece.keys.data(), piece.counts.data(), piece.rows.data(), piece.keys.size()});
      piece = Piece();  // so that they and the outputs are not both there in whole
    }
    for (const GradientSet& set : last) copy(set);
    return Status();
  }

  const KernelContext& context_;
  const std::vector<Contribution>& tables_;
  Executor& executor_;
  std::vector<std::vector<Piece>> earlier_;  // [table]
};

class NodeMergeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(operation_, attributes.String("operation"));
    TSPS_ASSIGN_OR_RETURN(const std::string reduction, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction_, ReductionFromName(reduction));
    return Status();
  }

  // Inputs: keys T, grads T, world_size, path, step, timeout_s. Outputs: keys T, grads T, counts T.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    const Status status = NoThrow([&] {
      Waiters::Get().Run([this, context, done] { done(NoThrow([&] { return Merge(context); })); });
      return Status();
    });
    if (!status.ok()) done(status);
  }

 private:
  Status Merge(const KernelContext& context) const {
    MergeCall call;
    call.operation = operation_;
    call.reduction = reduction_;
    TSPS_ASSIGN_OR_RETURN(call.world_size, context.Scalar<int32_t>(2 * tables_, "world_size"));
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(2 * tables_ + 1, "path"));
    TSPS_ASSIGN_OR_RETURN(call.step, context.Scalar<int64_t>(2 * tables_ + 2, "step"));
    TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(2 * tables_ + 3, "timeout_s"));
    if (!(call.timeout_s >= 0)) {
      return Error(Code::kInvalidArgument, "timeout_s must be >= 0. Received: ", call.timeout_s);
    }
    std::vector<Tensor> inputs;  // hold the buffers that `tables` points to
    std::vector<Contribution> tables;
    for (int t = 0; t < tables_; ++t) {
      TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(t));
      TSPS_ASSIGN_OR_RETURN(Tensor grads, context.Input(tables_ + t, 2, "grads"));
      if (grads.dim(0) != keys.dim(0)) {
        return Error(Code::kInvalidArgument, "table ", t, " has ", keys.size(),
                     " keys; expected as many grads. Received: grads of shape ",
                     ShapeString(grads.shape()));
      }
      tables.push_back({keys.data<int64_t>(), grads.data<float>(), keys.size(),
                        static_cast<size_t>(grads.dim(1))});
      inputs.push_back(std::move(keys));
      inputs.push_back(std::move(grads));
    }
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    call.cancelled = &owner->closed();
    const std::shared_ptr<Executor> executor = SharedExecutor();
    MergedOutputs outputs(context, tables, *executor);
    return owner->WithExchange([&](NodeExchange& exchange) {
      TSPS_RETURN_IF_ERROR(exchange.Merge(call, tables, *executor,
                                          [&](const NodeExchange::Merged& merged, bool last) {
                                            return outputs.Add(merged, last);
                                          }));
      return exchange.IsLeader() ? Status() : outputs.WriteNothing();
    });
  }

  int tables_ = 0;
  std::string operation_;
  Reduction reduction_ = Reduction::kSum;
};

}  // namespace

void RegisterExchangeKernels() {
  RegisterKernel<JoinExchangeKernel>("TspsJoinExchange");
  RegisterAsyncKernel<NodeMergeKernel>("TspsNodeMerge");
}

}  // namespace tsps
