// TspsPullAsk, TspsPullServe and TspsPullTake: rows of sharded tables come from the nodes that own
// them (core/exchange/row_pull.h). Between Ask and Serve the graph sends keys, between Serve and
// Take rows, all to all among the ranks of one number. The first and the last are asynchronous:
// they wait for other ranks of the node.
//
// Keys and rows travel in the wire format: keys with rows of no floats, rows with their positions
// among those keys in place of keys, whose code takes next to nothing.
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/exchange/row_pull.h"
#include "core/wire/wire.h"
#include "kernels/async_kernel.h"
#include "kernels/features.h"
#include "kernels/gradients.h"
#include "kernels/process.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

// Attributes of all three.
struct PullAttributes {
  int tables = 0;
  std::string operation;
  uint32_t nodes = 1, node = 0;
  WireType type = WireType::kFloat32;

  Status Init(const Attributes& attributes) {
    TSPS_ASSIGN_OR_RETURN(tables, attributes.Int("T"));
    TSPS_ASSIGN_OR_RETURN(operation, attributes.String("operation"));
    TSPS_ASSIGN_OR_RETURN(const int of, attributes.Int("nodes"));
    TSPS_ASSIGN_OR_RETURN(const int one, attributes.Int("node"));
    TSPS_ASSIGN_OR_RETURN(const std::string wire, attributes.String("wire"));
    TSPS_ASSIGN_OR_RETURN(type, WireTypeFromName(wire));
    nodes = static_cast<uint32_t>(of);
    node = static_cast<uint32_t>(one);
    if (one < of) return Status();
    return Error(Code::kInvalidArgument, "node must be below ", of, ". Received: ", one);
  }
};

// One feature per table: keys that are looked up as they are.
Features KeysAlone(int tables) {
  Features features;
  features.n = features.tables = tables;
  features.table_of.resize(static_cast<size_t>(tables));
  std::iota(features.table_of.begin(), features.table_of.end(), 0);
  return features;
}

// Reads rows of keys: rows[table], float[keys, dim].
Status ReadRowsOf(const std::vector<TableHandle>& tables,
                  const std::vector<std::vector<int64_t>>& keys,
                  std::vector<std::vector<float>>* rows, Executor& executor) {
  std::vector<RowGather> gathers;
  rows->resize(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    TSPS_RETURN_IF_ERROR(CheckKeys(tables[t].config(), keys[t].data(), keys[t].size()));
    (*rows)[t].resize(keys[t].size() * static_cast<size_t>(tables[t].config().dim));
    gathers.emplace_back(tables[t].known, tables[t].table, keys[t].data(), keys[t].size());
  }
  const auto copy = [&](int t) {
    gathers[static_cast<size_t>(t)].CopyAll((*rows)[static_cast<size_t>(t)].data(), executor);
  };
  return ReadRows(KeysAlone(static_cast<int>(tables.size())), tables, gathers, executor, copy);
}

// What each node has sent, checked against what is expected of it.
Result<std::vector<WireReader>> OpenBuffers(const Tensor& buffers, uint32_t nodes, size_t tables) {
  std::vector<WireReader> readers;
  for (size_t at = 0; at < buffers.size();) {
    TSPS_ASSIGN_OR_RETURN(WireReader reader, WireReader::Open(buffers.data<const uint8_t>() + at,
                                                              buffers.size() - at));
    if (reader.n_tables() != tables) {
      return Error(Code::kInvalidArgument, "node ", readers.size(), " sent ", reader.n_tables(),
                   " tables. Expected: ", tables);
    }
    at += PaddedBytes(reader.bytes(), nodes);
    readers.push_back(std::move(reader));
  }
  ProcessWireCounters().bytes_unpacked.fetch_add(buffers.size(), std::memory_order_relaxed);
  if (readers.size() == nodes) return readers;
  return Error(Code::kInvalidArgument, "received from ", readers.size(),
               " nodes. Expected: ", nodes);
}

class PullAskKernel {
 public:
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: keys T, paths T, uuids T, timeout_s. Outputs: buffer, splits.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Ask(context); });
  }

 private:
  Status Ask(const KernelContext& context) {
    const WorkSpan span("ask for rows");
    const int n = attributes_.tables;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, cache_.Resolve(context, n, 2 * n, n));
    OpenGroup& owner = *tables->front().owner;
    MergeCall call;
    call.operation = attributes_.operation;
    TSPS_ASSIGN_OR_RETURN(call.timeout_s, context.Scalar<float>(3 * n, "timeout_s"));
    call.step = static_cast<int64_t>(owner.group().step()) + 1;
    call.cancelled = &owner.closed();
    return owner.pulls().With(
        attributes_.operation, attributes_.nodes, attributes_.node, [&](RowPull& pull) {
          return pull.Part([&] { return AskAndPack(context, call, *tables, pull); });
        });
  }

  Status AskAndPack(const KernelContext& context, const MergeCall& call,
                    const std::vector<TableHandle>& tables, RowPull& pull) const {
    std::vector<Tensor> held;
    std::vector<AskedKeys> asked;
    for (size_t t = 0; t < tables.size(); ++t) {
      TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(static_cast<int>(t)));
      TSPS_RETURN_IF_ERROR(CheckKeys(tables[t].config(), keys.data<int64_t>(), keys.size()));
      asked.push_back(
          {keys.data<int64_t>(), keys.size(), static_cast<size_t>(tables[t].config().dim)});
      held.push_back(std::move(keys));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    TSPS_RETURN_IF_ERROR(pull.Ask(call, asked, *executor));
    if (!pull.Sends()) return PackNothing(context, 0, attributes_.nodes);
    const auto sets_of = [&](uint32_t node) {
      std::vector<WireSet> sets;
      for (const RowPull::Wanted& wanted : pull.wanted()) {
        const size_t begin = wanted.starts[node], n = wanted.starts[node + 1] - begin;
        sets.push_back({wanted.keys.data() + begin, nullptr, nullptr, n, 0});
      }
      return sets;
    };
    return PackForEach(context, 0, attributes_.nodes, sets_of, attributes_.type, *executor);
  }

  PullAttributes attributes_;
  TableCache cache_;
};

class PullServeKernel {
 public:
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: asked, paths T, uuids T. Outputs: buffer, splits.
  Status Compute(const KernelContext& context) {
    const WorkSpan span("serve rows");
    const int n = attributes_.tables;
    const auto n_tables = static_cast<size_t>(n);
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, cache_.Resolve(context, 1, 1 + n, n));
    TSPS_ASSIGN_OR_RETURN(const Tensor asked, context.Input(0, 1, "asked"));
    TSPS_ASSIGN_OR_RETURN(const std::vector<WireReader> readers,
                          OpenBuffers(asked, attributes_.nodes, n_tables));
    // Of one node after another.
    std::vector<std::vector<int64_t>> keys(n_tables);
    for (const WireReader& reader : readers) {
      for (size_t t = 0; t < n_tables; ++t) {
        const size_t begin = keys[t].size();
        keys[t].resize(begin + reader.n(t));
        TSPS_RETURN_IF_ERROR(reader.Keys(t, keys[t].data() + begin));
      }
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<std::vector<float>> rows;
    TSPS_RETURN_IF_ERROR(ReadRowsOf(*tables, keys, &rows, *executor));
    size_t most = 0;
    for (const WireReader& reader : readers) {
      for (size_t t = 0; t < n_tables; ++t) most = std::max(most, reader.n(t));
    }
    std::vector<int64_t> positions(most);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<size_t> done(n_tables);
    const auto sets_of = [&](uint32_t node) {
      std::vector<WireSet> sets;
      for (size_t t = 0; t < n_tables; ++t) {
        const size_t n_rows = readers[node].n(t);
        const auto dim = static_cast<size_t>((*tables)[t].config().dim);
        sets.push_back({positions.data(), nullptr, rows[t].data() + done[t] * dim, n_rows, dim});
        done[t] += n_rows;
      }
      return sets;
    };
    return PackForEach(context, 0, attributes_.nodes, sets_of, attributes_.type, *executor);
  }

 private:
  PullAttributes attributes_;
  TableCache cache_;
};

class PullTakeKernel {
 public:
  Status Init(const Attributes& attributes) { return attributes_.Init(attributes); }

  // Inputs: served, keys T, paths T, uuids T. Outputs: rows T.
  void ComputeAsync(const KernelContext& context, const Done& done) {
    RunOnWaiter(done, [this, context] { return Take(context); });
  }

 private:
  Status Take(const KernelContext& context) {
    const WorkSpan span("take rows");
    const int n = attributes_.tables;
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables,
                          cache_.Resolve(context, 1 + n, 1 + 2 * n, n));
    OpenGroup& owner = *tables->front().owner;
    return owner.pulls().With(attributes_.operation, attributes_.nodes, attributes_.node,
                              [&](RowPull& pull) {
                                return pull.Part([&]() -> Status {
                                  if (pull.Sends()) TSPS_RETURN_IF_ERROR(Answer(context, pull));
                                  return Collect(context, *tables, pull);
                                });
                              });
  }

  Status Answer(const KernelContext& context, RowPull& pull) const {
    TSPS_ASSIGN_OR_RETURN(const Tensor served, context.Input(0, 1, "served"));
    const auto n_tables = static_cast<size_t>(attributes_.tables);
    TSPS_ASSIGN_OR_RETURN(const std::vector<WireReader> readers,
                          OpenBuffers(served, attributes_.nodes, n_tables));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    return pull.Answer([&](const std::vector<float*>& rows) -> Status {
      for (uint32_t node = 0; node < attributes_.nodes; ++node) {
        for (size_t t = 0; t < n_tables; ++t) {
          const RowPull::Wanted& wanted = pull.wanted()[t];
          const size_t begin = wanted.starts[node], n = wanted.starts[node + 1] - begin;
          const WireReader& reader = readers[node];
          if (reader.n(t) != n) {
            return Error(Code::kInvalidArgument, "node ", node, " sent ", reader.n(t),
                         " rows of table ", t, " in operation '", attributes_.operation,
                         "'. Expected: ", n);
          }
          reader.Rows(t, rows[t] + begin * reader.dim(t), *executor);
        }
      }
      return Status();
    });
  }

  Status Collect(const KernelContext& context, const std::vector<TableHandle>& tables,
                 RowPull& pull) const {
    std::vector<Tensor> outputs;
    RowTargets targets;
    std::vector<std::vector<int64_t>> own(tables.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(1 + static_cast<int>(t)));
      TSPS_ASSIGN_OR_RETURN(
          Tensor rows,
          context.Output<float>(static_cast<int>(t), {keys.dim(0), tables[t].config().dim}));
      for (const uint32_t place : pull.own_positions(t)) {
        own[t].push_back(keys.data<int64_t>()[place]);
      }
      targets.push_back(rows.data<float>());
      outputs.push_back(std::move(rows));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<std::vector<float>> rows;
    TSPS_RETURN_IF_ERROR(ReadRowsOf(tables, own, &rows, *executor));
    for (size_t t = 0; t < tables.size(); ++t) {
      const auto dim = static_cast<size_t>(tables[t].config().dim);
      std::vector<uint8_t> narrow(dim * WireTypeBytes(attributes_.type));
      const float* from = rows[t].data();
      for (const uint32_t place : pull.own_positions(t)) {
        // As those that come from other nodes: what a row is must not depend on who asks.
        NarrowFloats(attributes_.type, from, dim, narrow.data());
        WidenFloats(attributes_.type, narrow.data(), dim, targets[t] + place * dim);
        from += dim;
      }
    }
    return pull.Collect(targets, *executor);
  }

  PullAttributes attributes_;
  TableCache cache_;
};

}  // namespace

void RegisterPullKernels() {
  RegisterAsyncKernel<PullAskKernel>("TspsPullAsk");
  RegisterKernel<PullServeKernel>("TspsPullServe");
  RegisterAsyncKernel<PullTakeKernel>("TspsPullTake");
}

}  // namespace tsps
