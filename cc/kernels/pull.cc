// TspsPullAsk, TspsPullServe and TspsPullTake: they fetch rows of sharded tables from the nodes
// that own them (core/exchange/row_pull.h). Ranks with the same local rank exchange keys between
// Ask and Serve, and rows between Serve and Take, in all-to-alls of the graph. Ask and Take are
// asynchronous, because they wait for other ranks of the node.
//
// A lookup pulls the rows that its rank needs and does not have. In each step, a pull of the next
// batch also fetches those of its rows that the step does not change (core/exchange/rows_ahead.h).
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/key_owner.h"
#include "core/table/planes.h"
#include "kernels/async_kernel.h"
#include "kernels/gradients.h"
#include "kernels/process.h"
#include "kernels/pull_buffers.h"
#include "kernels/stager.h"
#include "kernels/timeline.h"
#include "kernels/waiters.h"

namespace tsps {
namespace {

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
        attributes_.operation, attributes_.nodes, attributes_.node, [&](RowPulls::Pull& state) {
          return state.pull->Part([&] { return AskAndPack(context, call, *tables, owner, state); });
        });
  }

  Status AskAndPack(const KernelContext& context, const MergeCall& call,
                    const std::vector<TableHandle>& tables, OpenGroup& owner,
                    RowPulls::Pull& state) const {
    RowPull& pull = *state.pull;
    RowPulls& pulls = owner.pulls();
    RowPull::AskOptions options;
    std::vector<Tensor> held;
    std::vector<AskedKeys> asked;
    state.taken.assign(tables.size(), {});
    state.coming.assign(tables.size(), {});
    state.later.assign(attributes_.sets() - tables.size(), {});
    options.flag = !attributes_.ahead && pulls.Announced();
    options.here = !attributes_.ahead && pulls.looking();
    for (size_t t = 0; t < tables.size(); ++t) {
      const auto dim = static_cast<size_t>(tables[t].config().dim);
      RowsAhead& ahead = pulls.ahead(tables[t].table);
      if (attributes_.ahead) {
        for (const int64_t key : ahead.Next()) {
          if (OwnerOf(key, attributes_.nodes) != attributes_.node) state.coming[t].push_back(key);
        }
        options.flag |= !ahead.known();
        asked.push_back({state.coming[t].data(), state.coming[t].size(), dim});
        continue;
      }
      TSPS_ASSIGN_OR_RETURN(Tensor keys, context.Keys(static_cast<int>(t)));
      TSPS_RETURN_IF_ERROR(CheckKeys(tables[t].config(), keys.data<int64_t>(), keys.size()));
      ahead.LookUp(keys.data<int64_t>(), keys.size(), options.here);
      state.taken[t] = ahead.Take(keys.data<int64_t>(), keys.size(), dim, owner.group().version());
      asked.push_back({keys.data<int64_t>(), keys.size(), dim, state.taken[t].have.data()});
      held.push_back(std::move(keys));
    }
    for (size_t t = 0; t < state.later.size(); ++t) {
      if (tables[t].config().storage.tiered()) {
        state.later[t] = pulls.ahead(tables[t].table).NextPass();
      }
      asked.push_back({state.later[t].data(), state.later[t].size(), 0});
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    TSPS_RETURN_IF_ERROR(pull.Ask(call, asked, options, *executor));
    for (size_t t = 0; !attributes_.ahead && t < tables.size(); ++t) {
      pulls.ahead(tables[t].table).CountLookUps(asked[t].n - pull.own_positions(t).size());
      if (options.here && pull.Sends()) pulls.ahead(tables[t].table).LookUpHere(pull.here()[t]);
    }
    if (!pull.Sends()) return PackNothing(context, 0, attributes_.nodes);
    const auto sets_of = [&](uint32_t node) {
      std::vector<WireSet> sets;
      for (const RowPull::Wanted& wanted : pull.wanted()) {
        const size_t begin = wanted.starts[node], n = wanted.starts[node + 1] - begin;
        sets.push_back({wanted.keys.data() + begin, nullptr, nullptr, n, 0});
      }
      sets.push_back(FlagSet(pull.flag()));
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
    TSPS_ASSIGN_OR_RETURN(const TableCache::Tables tables, cache_.Resolve(context, 1, 1 + n, n));
    OpenGroup& owner = *tables->front().owner;
    return owner.pulls().With(
        attributes_.operation, attributes_.nodes, attributes_.node, [&](RowPulls::Pull& state) {
          return state.pull->Part([&] { return Serve(context, *tables, owner.pulls(), state); });
        });
  }

 private:
  // The rows of one table that one node gets.
  struct Answer {
    std::vector<int64_t> keys, positions;  // `positions` are among the keys that the node asked for
  };

  Status Serve(const KernelContext& context, const std::vector<TableHandle>& tables,
               RowPulls& pulls, RowPulls::Pull& state) const {
    const size_t n_tables = tables.size();
    TSPS_ASSIGN_OR_RETURN(const Tensor asked, context.Input(0, 1, "asked"));
    TSPS_ASSIGN_OR_RETURN(const std::vector<WireReader> readers,
                          OpenBuffers(asked, attributes_.nodes, attributes_.sets() + 1));
    state.flag = false;
    for (const WireReader& reader : readers) state.flag |= reader.n(attributes_.sets()) > 0;
    std::vector<std::vector<Answer>> answers(readers.size(), std::vector<Answer>(n_tables));
    std::vector<std::vector<int64_t>> keys(n_tables);  // [table]: the keys of node after node
    for (size_t t = 0; t < n_tables; ++t) {
      TSPS_ASSIGN_OR_RETURN(const bool may_change, MayEvict(tables[t]));
      for (size_t node = 0; node < readers.size(); ++node) {
        Answer& answer = answers[node][t];
        TSPS_RETURN_IF_ERROR(Choose(readers[node], t, pulls.ahead(tables[t].table), pulls.looking(),
                                    state.flag || may_change, &answer));
        keys[t].insert(keys[t].end(), answer.keys.begin(), answer.keys.end());
      }
    }
    for (size_t set = n_tables; set < attributes_.sets(); ++set) {
      TSPS_RETURN_IF_ERROR(Stage(tables[set - n_tables], readers, set, pulls));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<std::vector<float>> rows;
    TSPS_RETURN_IF_ERROR(ReadRowsOf(tables, keys, &rows, *executor));
    std::vector<size_t> done(n_tables);
    const auto sets_of = [&](uint32_t node) {
      std::vector<WireSet> sets;
      for (size_t t = 0; t < n_tables; ++t) {
        const std::vector<int64_t>& positions = answers[node][t].positions;
        const auto dim = static_cast<size_t>(tables[t].config().dim);
        const float* const first = rows[t].data() + done[t] * dim;
        sets.push_back({positions.data(), nullptr, first, positions.size(), dim});
        done[t] += positions.size();
      }
      return sets;
    };
    return PackForEach(context, 0, attributes_.nodes, sets_of, attributes_.type, *executor);
  }

  // Stages the rows of later batches of all nodes: they are read from disk during training.
  Status Stage(const TableHandle& table, const std::vector<WireReader>& readers, size_t set,
               RowPulls& pulls) const {
    std::vector<int64_t> keys;
    for (const WireReader& reader : readers) {
      const size_t before = keys.size();
      keys.resize(before + reader.n(set));
      TSPS_RETURN_IF_ERROR(reader.Keys(set, keys.data() + before));
    }
    if (keys.empty()) return Status();
    TSPS_RETURN_IF_ERROR(CheckKeys(table.config(), keys.data(), keys.size()));
    const auto pass = static_cast<int64_t>(pulls.ahead(table.table).pass());
    Stager::Get().AnnouncePass(table, pass, std::move(keys));
    return Status();
  }

  // Returns whether the step may evict rows, of any keys, whose old values must not be used then.
  Result<bool> MayEvict(const TableHandle& table) const {
    bool records_use = false;
    if (!attributes_.ahead) return records_use;
    TSPS_RETURN_IF_ERROR(table.group().Read([&](const ReadView& view) {
      const PlaneList* const list = view.Planes(table.table);
      records_use = list != nullptr && list->records_use();
      return Status();
    }));
    return records_use;
  }

  // Chooses which of the rows that a node asks for it gets. `may_change`: the step may change any
  // row.
  Status Choose(const WireReader& reader, size_t table, RowsAhead& ahead, bool looking,
                bool may_change, Answer* answer) const {
    std::vector<int64_t> keys(reader.n(table));
    TSPS_RETURN_IF_ERROR(reader.Keys(table, keys.data()));
    std::vector<uint8_t> stays(keys.size(), 1);
    if (attributes_.ahead) {
      stays = ahead.Stays(keys);
      if (may_change) std::fill(stays.begin(), stays.end(), 0);
    } else if (looking) {
      ahead.LookUpHere(keys);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (stays[i] == 0) continue;
      answer->keys.push_back(keys[i]);
      answer->positions.push_back(static_cast<int64_t>(i));
    }
    if (attributes_.ahead) ahead.Sent(answer->keys);
    return Status();
  }

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
                              [&](RowPulls::Pull& state) {
                                return state.pull->Part([&]() -> Status {
                                  if (state.pull->Sends())
                                    TSPS_RETURN_IF_ERROR(Answer(context, state));
                                  if (attributes_.ahead)
                                    return Keep(context, *tables, owner, state);
                                  TSPS_RETURN_IF_ERROR(Collect(context, *tables, state));
                                  owner.pulls().Agree(state.pull->agreed());
                                  return Status();
                                });
                              });
  }

  Status Answer(const KernelContext& context, RowPulls::Pull& state) const {
    TSPS_ASSIGN_OR_RETURN(const Tensor served, context.Input(0, 1, "served"));
    const auto n_tables = static_cast<size_t>(attributes_.tables);
    TSPS_ASSIGN_OR_RETURN(const std::vector<WireReader> readers,
                          OpenBuffers(served, attributes_.nodes, n_tables));
    const std::shared_ptr<Executor> executor = SharedExecutor();
    return state.pull->Answer([&](const std::vector<RowPull::Fetched>& tables) -> Result<bool> {
      for (uint32_t node = 0; node < attributes_.nodes; ++node) {
        for (size_t t = 0; t < n_tables; ++t) {
          const RowPull::Wanted& wanted = state.pull->wanted()[t];
          const size_t begin = wanted.starts[node], n = wanted.starts[node + 1] - begin;
          TSPS_RETURN_IF_ERROR(Put(readers[node], node, t, begin, n, tables[t], *executor));
        }
      }
      return state.flag;
    });
  }

  // Stores the rows of one table that a node has sent. It was asked for the n keys from `begin` on.
  Status Put(const WireReader& reader, uint32_t node, size_t table, size_t begin, size_t n,
             const RowPull::Fetched& to, Executor& executor) const {
    const size_t sent = reader.n(table), dim = reader.dim(table);
    const bool all = sent == n;
    if (sent > n || (!all && !attributes_.ahead)) {
      return Error(Code::kInvalidArgument, "node ", node, " sent ", sent, " rows of table ", table,
                   " in operation '", attributes_.operation, "'. Expected: ", n);
    }
    if (all) {
      reader.Rows(table, to.rows + begin * dim, executor);
      std::fill_n(to.present + begin, n, 1);
      return Status();
    }
    std::vector<int64_t> positions(sent);
    std::vector<float> rows(sent * dim);
    TSPS_RETURN_IF_ERROR(reader.Keys(table, positions.data()));
    reader.Rows(table, rows.data(), executor);
    for (size_t i = 0; i < sent; ++i) {
      const auto position = static_cast<size_t>(positions[i]);
      if (position >= n) {
        return Error(Code::kDataLoss, "node ", node, " sent a row for position ", positions[i],
                     " of ", n, " in operation '", attributes_.operation, "'");
      }
      std::memcpy(to.rows + (begin + position) * dim, rows.data() + i * dim, dim * sizeof(float));
      to.present[begin + position] = 1;
    }
    return Status();
  }

  // Keeps the rows of a pull of the next batch for the next step. The outputs have no rows.
  Status Keep(const KernelContext& context, const std::vector<TableHandle>& tables,
              OpenGroup& owner, RowPulls::Pull& state) const {
    std::vector<std::vector<float>> rows(tables.size());
    std::vector<std::vector<uint8_t>> present(attributes_.sets());
    RowTargets targets;
    for (size_t t = 0; t < tables.size(); ++t) {
      const int64_t dim = tables[t].config().dim;
      rows[t].resize(state.coming[t].size() * static_cast<size_t>(dim));
      present[t].resize(state.coming[t].size());
      targets.push_back({rows[t].data(), present[t].data()});
      TSPS_RETURN_IF_ERROR(context.Output<float>(static_cast<int>(t), {0, dim}).status());
    }
    for (size_t t = 0; t < state.later.size(); ++t) {
      present[tables.size() + t].resize(state.later[t].size());
      targets.push_back({nullptr, present[tables.size() + t].data()});
    }
    TSPS_RETURN_IF_ERROR(state.pull->Collect(targets, *SharedExecutor()));
    for (size_t t = 0; t < tables.size(); ++t) {
      owner.pulls()
          .ahead(tables[t].table)
          .Keep(state.coming[t], present[t], rows[t], static_cast<size_t>(tables[t].config().dim),
                owner.group().version());
    }
    state.coming.clear();
    state.later.clear();
    return Status();
  }

  Status Collect(const KernelContext& context, const std::vector<TableHandle>& tables,
                 RowPulls::Pull& state) const {
    std::vector<Tensor> outputs;
    RowTargets targets;
    std::vector<std::vector<int64_t>> own_keys(tables.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      TSPS_ASSIGN_OR_RETURN(const Tensor keys, context.Keys(1 + static_cast<int>(t)));
      TSPS_ASSIGN_OR_RETURN(
          Tensor rows,
          context.Output<float>(static_cast<int>(t), {keys.dim(0), tables[t].config().dim}));
      for (const uint32_t place : state.pull->own_positions(t)) {
        own_keys[t].push_back(keys.data<int64_t>()[place]);
      }
      targets.push_back({rows.data<float>()});
      outputs.push_back(std::move(rows));
    }
    const std::shared_ptr<Executor> executor = SharedExecutor();
    std::vector<std::vector<float>> rows;
    TSPS_RETURN_IF_ERROR(ReadRowsOf(tables, own_keys, &rows, *executor));
    for (size_t t = 0; t < tables.size(); ++t) {
      const auto dim = static_cast<size_t>(tables[t].config().dim);
      std::vector<uint8_t> narrow(dim * WireTypeBytes(attributes_.type));
      const float* from = rows[t].data();
      for (const uint32_t place : state.pull->own_positions(t)) {
        // Rounds the row like the rows from other nodes, so that all nodes see the same row.
        NarrowFloats(attributes_.type, from, dim, narrow.data());
        WidenFloats(attributes_.type, narrow.data(), dim, targets[t].rows + place * dim);
        from += dim;
      }
      const RowsAhead::Taken& taken = state.taken[t];
      from = taken.rows.data();
      for (size_t place = 0; place < taken.have.size(); ++place) {
        if (taken.have[place] == 0) continue;
        std::memcpy(targets[t].rows + place * dim, from, dim * sizeof(float));
        from += dim;
      }
    }
    state.taken.clear();
    return state.pull->Collect(targets, *executor);
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
