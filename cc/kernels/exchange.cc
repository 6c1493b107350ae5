// TspsJoinExchange, TspsLeaveExchange, TspsRingInfo, TspsNodeMerge and TspsNodeApply: the ranks of
// a node merge their sparse gradients in shared memory (core/node_exchange.h), for the leader to
// send or to apply. Asynchronous: they wait for other ranks.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/node_exchange.h"
#include "kernels/async_kernel.h"
#include "kernels/gradients.h"
#include "kernels/group_registry.h"
#include "kernels/process.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

class JoinExchangeKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, folder, local_rank, local_size, rank, window.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::string folder, context.String(1, "folder"));
    TSPS_ASSIGN_OR_RETURN(const int64_t local_rank, context.Scalar<int64_t>(2, "local_rank"));
    TSPS_ASSIGN_OR_RETURN(const int64_t local_size, context.Scalar<int64_t>(3, "local_size"));
    TSPS_ASSIGN_OR_RETURN(const int64_t rank, context.Scalar<int64_t>(4, "rank"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    TSPS_ASSIGN_OR_RETURN(const int64_t window, context.Scalar<int64_t>(5, "window"));
    if (local_rank < 0 || local_rank >= local_size || local_size > 9999 || window < 1) {
      return Error(Code::kInvalidArgument, "expected 0 <= local_rank < local_size <= 9999 and a ",
                   "window of bytes. Received: ", local_rank, ", ", local_size, ", ", window);
    }
    HoldTerminate();
    return owner->JoinExchange(folder, static_cast<int>(local_rank), static_cast<int>(local_size),
                               rank, static_cast<size_t>(window));
  }
};

class LeaveExchangeKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    return owner->WithExchange([](NodeExchange& exchange) {
      exchange.Leave();
      return Status();
    });
  }
};

// The attributes of both merging ops.
struct MergeAttributes {
  int tables = 0;
  std::string operation;
  Reduction reduction = Reduction::kSum;

  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(operation, attributes.String("operation"));
    TSPS_ASSIGN_OR_RETURN(const std::string name, attributes.String("reduction"));
    TSPS_ASSIGN_OR_RETURN(reduction, ReductionFromName(name));
    return Status();
  }
};

// What both merging ops begin with: keys T, grads T, world_size, path, step, timeout_s.
struct MergeInputs {
  MergeCall call;
  std::string path;
  GradientInputs gradients;  // hold the buffers that `tables` points to
  std::vector<Contribution> tables;
  std::shared_ptr<OpenGroup> owner;

  Status Read(const KernelContext& context, const MergeAttributes& attributes) {
    const int n_tables = attributes.tables;
    call.operation = attributes.operation;
    call.reduction = attributes.reduction;
    TSPS_ASSIGN_OR_RETURN(call.world_size, context.Scalar<int32_t>(2 * n_tables, "world_size"));
    TSPS_ASSIGN_OR_RETURN(path, context.String(2 * n_tables + 1, "path"));
    TSPS_ASSIGN_OR_RETURN(call.step, context.Scalar<int64_t>(2 * n_tables + 2, "step"));
    TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(2 * n_tables + 3, "timeout_s"));
    if (!(call.timeout_s >= 0)) {
      return Error(Code::kInvalidArgument, "timeout_s must be >= 0. Received: ", call.timeout_s);
    }
    TSPS_RETURN_IF_ERROR(gradients.Read(context, n_tables, /*with_counts=*/false));
    for (const TableSets& table : gradients.tables) {
      const GradientSet& set = table.sets.front();
      tables.push_back({set.keys, set.rows, set.n, table.dim});
    }
    TSPS_ASSIGN_OR_RETURN(owner, GroupRegistry::Get().Open(path));
    call.cancelled = &owner->closed();
    return Status();
  }
};

class RingInfoKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path. Outputs: counters.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    const auto value = [](const std::atomic<uint64_t>& counter) {
      return static_cast<int64_t>(counter.load(std::memory_order_relaxed));
    };
    const WireCounters& wire = ProcessWireCounters();
    std::vector<int64_t> counters(5);
    if (owner->HasExchange()) {
      TSPS_RETURN_IF_ERROR(owner->WithExchange([&](NodeExchange& exchange) {
        const ExchangeCounters& node = exchange.counters();
        counters = {value(node.rows_contributed), value(node.bytes_contributed),
                    value(node.rows_merged), value(node.rounds), value(node.waited_ns)};
        return Status();
      }));
    }
    counters.push_back(value(wire.bytes_packed));
    counters.push_back(value(wire.bytes_unpacked));
    return context.OutputVector(0, counters);
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
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: as MergeInputs. Outputs: keys T, grads T, counts T.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Merge(context); });
  }

 private:
  Status Merge(const KernelContext& context) const {
    MergeInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, attributes_));
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
    TSPS_ASSIGN_OR_RETURN(
        const Tensor grads,
        context.Output<float>(attributes_.tables + table, {n, static_cast<int64_t>(dim)}));
    TSPS_ASSIGN_OR_RETURN(const Tensor counts,
                          context.Output<int32_t>(2 * attributes_.tables + table, {n}));
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

  MergeAttributes attributes_;
};

class NodeApplyKernel {
 public:
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: as MergeInputs, then paths T, uuids T, hyper T. Outputs: step.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Apply(context); });
  }

 private:
  Status Apply(const KernelContext& context) {
    MergeInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, attributes_));
    if (inputs.call.step < 1) {
      return Error(Code::kInvalidArgument, "step must be >= 1. Received: ", inputs.call.step);
    }
    // Before the merge, so that what is wrong with this rank's inputs is found before anyone waits.
    const int n = attributes_.tables, first = 2 * n + 4;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, first, first + n, n));
    std::vector<Tensor> hypers;  // hold the buffers that `updates` points to
    std::vector<TableUpdate> updates;
    for (size_t t = 0; t < inputs.tables.size(); ++t) {
      const TableHandle& table = (*tables)[t];
      if (table.owner != inputs.owner) {
        return Error(Code::kInvalidArgument, "table ", table.path(), " is not of group ",
                     inputs.path);
      }
      if (static_cast<int64_t>(inputs.tables[t].dim) != table.config().dim) {
        return Error(Code::kInvalidArgument, "grads of table ", table.path(), " must have ",
                     table.config().dim, " columns. Received: ", inputs.tables[t].dim);
      }
      TSPS_ASSIGN_OR_RETURN(Tensor hyper,
                            context.Input(first + 2 * n + static_cast<int>(t), 1, "hyper"));
      TableUpdate update;
      update.table = table.table;
      update.hyper = hyper.data<float>();
      update.n_hyper = hyper.size();
      updates.push_back(std::move(update));
      hypers.push_back(std::move(hyper));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    const auto apply = [&](std::vector<TableGradients>& gradients) {
      std::vector<std::vector<int64_t>> keys(gradients.size());
      for (size_t t = 0; t < gradients.size(); ++t) {
        for (const GradientSet& set : gradients[t].sets()) {
          keys[t].insert(keys[t].end(), set.keys, set.keys + set.n);
          updates[t].pieces.push_back({set.rows, set.n});
        }
        updates[t].keys = keys[t].data();
        updates[t].n = keys[t].size();
      }
      return inputs.owner->Write([&](GroupWriter& writer) {
        return writer.ApplyStep(static_cast<uint64_t>(inputs.call.step), updates, *executor);
      });
    };
    bool is_leader = false;
    TSPS_RETURN_IF_ERROR(MergeOnNode(inputs, *executor, apply, &is_leader));
    return context.OutputScalar(0, inputs.call.step);
  }

  MergeAttributes attributes_;
  TableCache cache_;
};

}  // namespace

void RegisterExchangeKernels() {
  RegisterKernel<JoinExchangeKernel>("TspsJoinExchange");
  RegisterKernel<LeaveExchangeKernel>("TspsLeaveExchange");
  RegisterKernel<RingInfoKernel>("TspsRingInfo");
  RegisterAsyncKernel<NodeMergeKernel>("TspsNodeMerge");
  RegisterAsyncKernel<NodeApplyKernel>("TspsNodeApply");
}

}  // namespace tsps
