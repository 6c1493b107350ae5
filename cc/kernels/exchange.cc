// TspsJoinExchange, TspsNodeMerge and TspsNodeApply: the ranks of a node merge their sparse
// gradients in shared memory (core/node_exchange.h), for the leader to send or to apply.
// Asynchronous: they wait for other ranks.
#include <algorithm>
#include <deque>
#include <functional>
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

// What both merging ops begin with: keys T, grads T, world_size, path, step, timeout_s.
struct MergeInputs {
  MergeCall call;
  std::string path;
  std::vector<Contribution> tables;
  std::vector<Tensor> held;  // the buffers that `tables` points to
  std::shared_ptr<OpenGroup> owner;

  Status Read(const KernelContext& context, int n_tables) {
    TSPS_ASSIGN_OR_RETURN(call.world_size, context.Scalar<int32_t>(2 * n_tables, "world_size"));
    TSPS_ASSIGN_OR_RETURN(path, context.String(2 * n_tables + 1, "path"));
    TSPS_ASSIGN_OR_RETURN(call.step, context.Scalar<int64_t>(2 * n_tables + 2, "step"));
    TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(2 * n_tables + 3, "timeout_s"));
    if (!(call.timeout_s >= 0)) {
      return Error(Code::kInvalidArgument, "timeout_s must be >= 0. Received: ", call.timeout_s);
    }
    for (int t = 0; t < n_tables; ++t) {
      TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(t));
      TSPS_ASSIGN_OR_RETURN(Tensor grads, context.Input(n_tables + t, 2, "grads"));
      if (grads.dim(0) != keys.dim(0)) {
        return Error(Code::kInvalidArgument, "table ", t, " has ", keys.size(),
                     " keys; expected as many grads. Received: grads of shape ",
                     ShapeString(grads.shape()));
      }
      tables.push_back({keys.data<int64_t>(), grads.data<float>(), keys.size(),
                        static_cast<size_t>(grads.dim(1))});
      held.push_back(std::move(keys));
      held.push_back(std::move(grads));
    }
    TSPS_ASSIGN_OR_RETURN(owner, GroupRegistry::Get().Open(path));
    call.cancelled = &owner->closed();
    return Status();
  }
};

// The merged gradients of a table: what earlier rounds left, copied because their shared memory is
// used again, and the last round's where they lie.
class TableGradients {
 public:
  void Keep(const std::vector<GradientSet>& round, size_t dim) {
    for (const GradientSet& set : round) {
      kept_.push_back({{set.keys, set.keys + set.n},
                       {set.counts, set.counts + set.n},
                       {set.rows, set.rows + set.n * dim}});
      sets_.push_back(
          {kept_.back().keys.data(), kept_.back().counts.data(), kept_.back().rows.data(), set.n});
    }
  }
  void Use(const std::vector<GradientSet>& last) {
    sets_.insert(sets_.end(), last.begin(), last.end());
  }

  const std::vector<GradientSet>& sets() const { return sets_; }
  size_t n() const {
    size_t n = 0;
    for (const GradientSet& set : sets_) n += set.n;
    return n;
  }
  // Gives back the memory of set `i`, if it is a kept one.
  void Drop(size_t i) {
    if (i < kept_.size()) kept_[i] = Kept();
  }

 private:
  struct Kept {
    std::vector<int64_t> keys;
    std::vector<int32_t> counts;
    std::vector<float> rows;
  };
  std::deque<Kept> kept_;  // addresses stay
  std::vector<GradientSet> sets_;
};

// Runs the exchange. On the leader calls `use` with every table's gradients, inside the last round.
Status MergeOnNode(const MergeInputs& inputs, Executor& executor,
                   const std::function<Status(std::vector<TableGradients>&)>& use,
                   bool* is_leader) {
  std::vector<TableGradients> gradients(inputs.tables.size());
  return inputs.owner->WithExchange([&](NodeExchange& exchange) {
    *is_leader = exchange.IsLeader();
    return exchange.Merge(inputs.call, inputs.tables, executor,
                          [&](const NodeExchange::Merged& merged, bool last) {
                            for (size_t t = 0; t < gradients.size(); ++t) {
                              if (last) {
                                gradients[t].Use(merged[t]);
                              } else {
                                gradients[t].Keep(merged[t], inputs.tables[t].dim);
                              }
                            }
                            return last ? use(gradients) : Status();
                          });
  });
}

class NodeMergeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(operation_, attributes.String("operation"));
    TSPS_ASSIGN_OR_RETURN(const std::string reduction, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction_, ReductionFromName(reduction));
    return Status();
  }

  // Inputs: as MergeInputs. Outputs: keys T, grads T, counts T.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Merge(context); });
  }

 private:
  Status Merge(const KernelContext& context) const {
    MergeInputs inputs;
    inputs.call.operation = operation_;
    inputs.call.reduction = reduction_;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, tables_));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    const auto write = [&](std::vector<TableGradients>& gradients) {
      for (size_t t = 0; t < gradients.size(); ++t) {
        TSPS_RETURN_IF_ERROR(
            Write(context, static_cast<int>(t), inputs.tables[t].dim, &gradients[t], *executor));
      }
      return Status();
    };
    bool is_leader = false;
    TSPS_RETURN_IF_ERROR(MergeOnNode(inputs, *executor, write, &is_leader));
    if (is_leader) return Status();
    std::vector<TableGradients> nothing(inputs.tables.size());
    return write(nothing);
  }

  Status Write(const KernelContext& context, int table, size_t dim, TableGradients* gradients,
               Executor& executor) const {
    const auto n = static_cast<int64_t>(gradients->n());
    TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Output<int64_t>(table, {n}));
    TSPS_ASSIGN_OR_RETURN(const Tensor grads,
                          context.Output<float>(tables_ + table, {n, static_cast<int64_t>(dim)}));
    TSPS_ASSIGN_OR_RETURN(const Tensor counts, context.Output<int32_t>(2 * tables_ + table, {n}));
    size_t at = 0;
    for (size_t i = 0; i < gradients->sets().size(); ++i) {
      const GradientSet& set = gradients->sets()[i];
      std::copy_n(set.keys, set.n, keys.data<int64_t>() + at);
      std::copy_n(set.counts, set.n, counts.data<int32_t>() + at);
      float* const to = grads.data<float>() + at * dim;
      executor.ParallelFor(set.n * dim, 1 << 16, [&](size_t begin, size_t end) {
        std::copy(set.rows + begin, set.rows + end, to + begin);
      });
      at += set.n;
      gradients->Drop(i);  // so that they and the outputs are not both there in whole
    }
    return Status();
  }

  int tables_ = 0;
  std::string operation_;
  Reduction reduction_ = Reduction::kSum;
};

class NodeApplyKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(operation_, attributes.String("operation"));
    TSPS_ASSIGN_OR_RETURN(const std::string reduction, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction_, ReductionFromName(reduction));
    return Status();
  }

  // Inputs: as MergeInputs, then paths T, uuids T, hyper T. Outputs: step.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Apply(context); });
  }

 private:
  Status Apply(const KernelContext& context) {
    MergeInputs inputs;
    inputs.call.operation = operation_;
    inputs.call.reduction = reduction_;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, tables_));
    if (inputs.call.step < 1) {
      return Error(Code::kInvalidArgument, "step must be >= 1. Received: ", inputs.call.step);
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    bool is_leader = false;
    TSPS_RETURN_IF_ERROR(MergeOnNode(
        inputs, *executor,
        [&](std::vector<TableGradients>& gradients) {
          return ApplyHere(context, inputs, gradients, *executor);
        },
        &is_leader));
    return context.OutputScalar(0, inputs.call.step);
  }

  // The leader's part.
  Status ApplyHere(const KernelContext& context, const MergeInputs& inputs,
                   const std::vector<TableGradients>& gradients, Executor& executor) {
    const int first = 2 * tables_ + 4;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, first, first + tables_, tables_));
    std::vector<Tensor> hypers;
    std::vector<std::vector<int64_t>> keys(gradients.size());
    std::vector<TableUpdate> updates(gradients.size());
    for (size_t t = 0; t < gradients.size(); ++t) {
      TSPS_ASSIGN_OR_RETURN(Tensor hyper,
                            context.Input(first + 2 * tables_ + static_cast<int>(t), 1, "hyper"));
      const TableHandle& table = (*tables)[t];
      if (static_cast<int64_t>(inputs.tables[t].dim) != table.config().dim) {
        return Error(Code::kInvalidArgument, "grads of table ", table.path(), " must have ",
                     table.config().dim, " columns. Received: ", inputs.tables[t].dim);
      }
      TableUpdate& update = updates[t];
      update.table = table.table;
      for (const GradientSet& set : gradients[t].sets()) {
        keys[t].insert(keys[t].end(), set.keys, set.keys + set.n);
        update.pieces.push_back({set.rows, set.n});
      }
      update.keys = keys[t].data();
      update.n = keys[t].size();
      update.hyper = hyper.data<float>();
      update.n_hyper = hyper.size();
      hypers.push_back(std::move(hyper));
    }
    return inputs.owner->Write([&](GroupWriter& writer) {
      return writer.ApplyStep(static_cast<uint64_t>(inputs.call.step), updates, executor);
    });
  }

  int tables_ = 0;
  std::string operation_;
  Reduction reduction_ = Reduction::kSum;
  TableCache cache_;
};

}  // namespace

void RegisterExchangeKernels() {
  RegisterKernel<JoinExchangeKernel>("TspsJoinExchange");
  RegisterAsyncKernel<NodeMergeKernel>("TspsNodeMerge");
  RegisterAsyncKernel<NodeApplyKernel>("TspsNodeApply");
}

}  // namespace tsps
