// TspsRingRounds, TspsRingTake, TspsRingPut, TspsRingPrepare and TspsRingCollect: the ranks of a
// node merge their sparse gradients with those of other nodes, round by round
// (core/exchange/node_exchange.h). Between Take and Put, the graph sends the merged gradients of a
// rank to the ranks with the same key range on the other nodes. All ops but the first are
// asynchronous, because they wait for other ranks of the node.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/wire/owner_sets.h"
#include "kernels/async_kernel.h"
#include "kernels/gradients.h"
#include "kernels/node_merge.h"
#include "kernels/process.h"
#include "kernels/step.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

// Runs a part of an exchange. After an error the exchange ends for all ranks of the node, because
// they would wait for this rank.
Status InExchange(OpenGroup& owner, const std::function<Status(NodeExchange&)>& part) {
  return owner.WithExchange(
      [&](NodeExchange& exchange) { return exchange.Part([&] { return part(exchange); }); });
}

class RingRoundsKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(dims_, attributes.IntList("dims"));
    TSPS_ASSIGN_OR_RETURN(window_, attributes.Int64("window"));
    TSPS_ASSIGN_OR_RETURN(local_size_, attributes.Int("local_size"));
    if (window_ >= 1 && local_size_ >= 1) return Status();
    return Error(Code::kInvalidArgument,
                 "window and local_size must be 1 or more. Received: ", window_, ", ", local_size_);
  }

  // Inputs: keys T. Outputs: rounds.
  Status Compute(const KernelContext& context) {
    size_t bytes = 0;
    for (size_t t = 0; t < dims_.size(); ++t) {
      TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(static_cast<int>(t)));
      bytes += keys.size() * NodeExchange::RowBytes(static_cast<size_t>(dims_[t]));
    }
    return context.OutputVector<int64_t>(
        0, {NodeExchange::RoundsFor(bytes, static_cast<size_t>(window_),
                                    static_cast<size_t>(local_size_))});
  }

 private:
  std::vector<int> dims_;
  int64_t window_ = 1;
  int local_size_ = 1;
};

class RingTakeKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_RETURN_IF_ERROR(attributes_.Init(attributes));
    TSPS_ASSIGN_OR_RETURN(const std::string wire, attributes.String("wire"));
    TSPS_ASSIGN_OR_RETURN(type_, WireTypeFromName(wire));
    TSPS_ASSIGN_OR_RETURN(const int owners, attributes.Int("owners"));
    owners_ = static_cast<uint32_t>(owners);
    return Status();
  }

  // Inputs: those of MergeInputs, then round, rounds. Outputs: buffer, splits.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Take(context); });
  }

 private:
  Status Take(const KernelContext& context) const {
    const int first = MergeInputs::Count(attributes_.tables);
    TSPS_ASSIGN_OR_RETURN(const int64_t round, context.Scalar<int64_t>(first, "round"));
    TSPS_ASSIGN_OR_RETURN(const int64_t rounds, context.Scalar<int64_t>(first + 1, "rounds"));
    if (round >= rounds) return PackNothing(context, 0, owners_);
    const WorkSpan span("merge and pack", /*of_ring=*/true);
    MergeInputs inputs;
    TSPS_RETURN_IF_ERROR(inputs.Read(context, attributes_));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    return InExchange(*inputs.owner, [&](NodeExchange& exchange) -> Status {
      if (round == 0) {
        TSPS_RETURN_IF_ERROR(
            exchange.Begin(inputs.call, inputs.tables, static_cast<uint32_t>(rounds), *executor));
      }
      std::vector<GradientSet> merged;
      TSPS_RETURN_IF_ERROR(
          exchange.Take(static_cast<uint32_t>(round), inputs.tables, *executor, &merged));
      if (!exchange.Merges()) return PackNothing(context, 0, owners_);
      std::vector<WireSet> sets;
      for (size_t t = 0; t < merged.size(); ++t) {
        const GradientSet& set = merged[t];
        sets.push_back({set.keys, set.counts, set.rows, set.n, inputs.tables[t].dim});
      }
      if (owners_ == 1) {
        return PackForEach(context, 0, 1, [&](uint32_t) { return sets; }, type_, *executor);
      }
      const OwnerSets by_owner(sets, owners_, *executor);
      return PackForEach(
          context, 0, owners_, [&](uint32_t owner) { return by_owner.Of(owner); }, type_,
          *executor);
    });
  }

  MergeAttributes attributes_;
  WireType type_ = WireType::kFloat32;
  uint32_t owners_ = 1;
};

class RingPutKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(owners_, attributes.Int("owners"));
    return Status();
  }

  // Inputs: path, buffers (padded, one after another), round. A negative round does nothing.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Put(context); });
  }

 private:
  Status Put(const KernelContext& context) const {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const Tensor buffers, context.Input(1, 1, "buffers"));
    TSPS_ASSIGN_OR_RETURN(const int64_t round, context.Scalar<int64_t>(2, "round"));
    if (round < 0) return Status();
    const WorkSpan span("unpack and reduce", /*of_ring=*/true);
    ProcessWireCounters().bytes_unpacked.fetch_add(buffers.size(), std::memory_order_relaxed);
    const std::shared_ptr<Executor> executor = SharedExecutor();
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    return InExchange(*owner, [&](NodeExchange& exchange) -> Status {
      if (buffers.size() == 0) {
        return Error(Code::kInvalidArgument, "the buffers of round ", round, " are empty");
      }
      WireBuffers& received = owner->received();
      TSPS_RETURN_IF_ERROR(received.Unpack(buffers.data<const uint8_t>(), buffers.size(),
                                           static_cast<size_t>(tables_),
                                           static_cast<size_t>(owners_), *executor));
      return exchange.Put(static_cast<uint32_t>(round), received.tables(), *executor);
    });
  }

  int tables_ = 0, owners_ = 1;
};

class RingPrepareKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables_, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(voters_, attributes.Int("voters"));
    return Status();
  }

  // Inputs: path, step, paths T, uuids T, hyper T, optimizer. Outputs: verdict.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Prepare(context); });
  }

 private:
  Status Prepare(const KernelContext& context) {
    const WorkSpan span("prepare");
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const int64_t step, context.Scalar<int64_t>(1, "step"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    const auto updates = std::make_shared<StepUpdates>();
    // Reads the inputs before it locks the exchange, because that may open tables.
    const Status read = updates->Read(context, 2, 2 + 2 * tables_, tables_, *owner, &cache_);
    Status verdict;
    TSPS_RETURN_IF_ERROR(InExchange(*owner, [&](NodeExchange& exchange) {
      return exchange.Finish([&](std::vector<ReducedGradients>& reduced) {
        const auto prepare = [&](GroupWriter& writer) -> Status {
          TSPS_RETURN_IF_ERROR(updates->TakeReduced(&reduced));
          return updates->Prepare(writer, step);
        };
        const auto voters = static_cast<uint32_t>(voters_);
        verdict =
            read.ok() ? NoThrow([&] { return owner->Prepare(prepare, updates, voters); }) : read;
        return Status();
      });
    }));
    return context.OutputVector(0, EncodeVerdict(verdict));
  }

  int tables_ = 0;
  int voters_ = 1;
  TableCache cache_;
};

class RingCollectKernel {
 public:
  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(dims_, attributes.IntList("dims"));
    return Status();
  }

  // Inputs: path. Outputs: keys T, grads T, counts T.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Collect(context); });
  }

 private:
  Status Collect(const KernelContext& context) const {
    TSPS_ASSIGN_OR_RETURN(const std::string path, context.String(0, "path"));
    TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<OpenGroup> owner, GroupRegistry::Get().Open(path));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    const auto write = [&](std::vector<ReducedGradients>& reduced) -> Status {
      if (reduced.size() != dims_.size()) {
        return Error(Code::kInvalidArgument, "the exchange has gradients of ", reduced.size(),
                     " tables. Expected: ", dims_.size());
      }
      return WriteReducedOutputs(context, &reduced, *executor);
    };
    bool is_leader = false;
    TSPS_RETURN_IF_ERROR(owner->WithExchange([&](NodeExchange& exchange) {
      is_leader = exchange.IsLeader();
      return exchange.Finish(write);
    }));
    if (is_leader) return Status();
    std::vector<ReducedGradients> nothing;
    for (const int dim : dims_) nothing.emplace_back(static_cast<size_t>(dim));
    return write(nothing);
  }

  std::vector<int> dims_;
};

}  // namespace

void RegisterRingKernels() {
  RegisterKernel<RingRoundsKernel>("TspsRingRounds");
  RegisterAsyncKernel<RingTakeKernel>("TspsRingTake");
  RegisterAsyncKernel<RingPutKernel>("TspsRingPut");
  RegisterAsyncKernel<RingPrepareKernel>("TspsRingPrepare");
  RegisterAsyncKernel<RingCollectKernel>("TspsRingCollect");
}

}  // namespace tsps
