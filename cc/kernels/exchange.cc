// TspsJoinExchange, TspsLeaveExchange, TspsRingInfo, TspsNodeMerge and TspsNodeApply: the ranks of
// a job with one node merge their sparse gradients in shared memory
// (core/exchange/node_exchange.h). The leader gets or applies the result. The last two ops are
// asynchronous, because they wait for other ranks.
#include <memory>
#include <string>
#include <vector>

#include "core/exchange/node_exchange.h"
#include "kernels/async_kernel.h"
#include "kernels/gradients.h"
#include "kernels/group_registry.h"
#include "kernels/node_merge.h"
#include "kernels/process.h"
#include "kernels/step.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

class JoinExchangeKernel {
 public:
  Status Init(const Attributes&) { return Status(); }

  // Inputs: path, folder, local_rank, local_size, rank, mergers, window.
  Status Compute(const KernelContext& context) {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::string folder, context.String(1, "folder"));
    TSPS_ASSIGN_OR_RETURN(const int64_t local_rank, context.Scalar<int64_t>(2, "local_rank"));
    TSPS_ASSIGN_OR_RETURN(const int64_t local_size, context.Scalar<int64_t>(3, "local_size"));
    TSPS_ASSIGN_OR_RETURN(const int64_t rank, context.Scalar<int64_t>(4, "rank"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    TSPS_ASSIGN_OR_RETURN(const int64_t mergers, context.Scalar<int64_t>(5, "mergers"));
    TSPS_ASSIGN_OR_RETURN(const int64_t window, context.Scalar<int64_t>(6, "window"));
    if (local_rank < 0 || local_rank >= local_size || local_size > 9999 || mergers < 0 ||
        mergers > local_size || window < 1) {
      return Error(Code::kInvalidArgument, "expected 0 <= local_rank < local_size <= 9999, 0 <= ",
                   "mergers <= local_size and a window of bytes. Received: ", local_rank, ", ",
                   local_size, ", ", mergers, ", ", window);
    }
    NodeExchange::Options options;
    options.local_rank = static_cast<int>(local_rank);
    options.local_size = static_cast<int>(local_size);
    options.rank = rank;
    options.mergers = static_cast<int>(mergers);
    options.window = static_cast<size_t>(window);
    return owner->JoinExchange(folder, options);
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
    if (owner->exchange() != nullptr) {
      TSPS_RETURN_IF_ERROR(owner->WithExchange([&](NodeExchange& exchange) {
        const ExchangeCounters& node = exchange.counters();
        counters = {value(node.rows_contributed), value(node.bytes_contributed),
                    value(node.rows_merged), value(node.rounds), value(node.waited_ns)};
        return Status();
      }));
    }
    counters.push_back(value(wire.bytes_packed));
    counters.push_back(value(wire.bytes_unpacked));
    const Timeline::Counters times = Timeline::Get().counters();
    counters.push_back(static_cast<int64_t>(times.sending_ns));
    counters.push_back(static_cast<int64_t>(times.overlapped_ns));
    return context.OutputVector(0, counters);
  }
};

class NodeMergeKernel {
 public:
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: those of MergeInputs. Outputs: keys T, grads T, counts T.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Merge(context); });
  }

 private:
  Status Merge(const KernelContext& context) const {
    MergeInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, attributes_));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    const auto write = [&](std::vector<ReducedGradients>& reduced) {
      return WriteReducedOutputs(context, &reduced, *executor);
    };
    bool is_leader = false;
    TSPS_RETURN_IF_ERROR(inputs.owner->WithExchange([&](NodeExchange& exchange) {
      is_leader = exchange.IsLeader();
      return exchange.Merge(inputs.call, inputs.tables, *executor, write);
    }));
    if (is_leader) return Status();
    std::vector<ReducedGradients> nothing;
    for (const Contribution& table : inputs.tables) nothing.emplace_back(table.dim);
    return write(nothing);
  }

  MergeAttributes attributes_;
};

class NodeApplyKernel {
 public:
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: those of MergeInputs, then paths T, uuids T, hyper T, optimizer, digest. Outputs:
  // verdict.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context](const ReportDone& report) { return Apply(context, report); });
  }

 private:
  Status Apply(const KernelContext& context, const ReportDone& report) {
    const WorkSpan span("merge and apply");
    MergeInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, attributes_));
    // Reads all inputs before the merge, so that an error in them is found before any rank waits.
    StepUpdates updates;
    const int paths = MergeInputs::Count(attributes_.tables);
    TSPS_RETURN_IF_ERROR(updates.Read(context, paths, paths + 2 * attributes_.tables,
                                      attributes_.tables, *inputs.owner, &cache_));
    for (size_t t = 0; t < inputs.tables.size(); ++t) {
      TSPS_RETURN_IF_ERROR(updates.CheckDim(t, inputs.tables[t].dim));
    }
    TSPS_ASSIGN_OR_RETURN(const int64_t digest,
                          context.Scalar<int64_t>(paths + 3 * attributes_.tables + 1, "digest"));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    return inputs.owner->WithExchange([&](NodeExchange& exchange) -> Status {
      // The statement comes before this rank contributes, so that the leader has all statements
      // after the merge.
      exchange.verdicts().PostStatement(inputs.call.step, static_cast<uint64_t>(digest),
                                        inputs.owner->TakeObjection());
      // The step is made inside of the merge, from the merged gradients in shared memory.
      TSPS_RETURN_IF_ERROR(exchange.Merge(
          inputs.call, inputs.tables, *executor, [&](std::vector<ReducedGradients>& reduced) {
            Status agreed;
            TSPS_RETURN_IF_ERROR(exchange.verdicts().AwaitStatements(inputs.call, &agreed));
            const Status ready = agreed.ok() ? updates.TakeReduced(&reduced) : agreed;
            return MakeStep(context, report, inputs.call.step, *inputs.owner, &exchange,
                            [&](GroupWriter& writer) {
                              return ready.ok() ? updates.Prepare(writer, inputs.call.step) : ready;
                            });
          }));
      return exchange.IsLeader() ? Status() : OutputLeadersVerdict(context, exchange, inputs.call);
    });
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
