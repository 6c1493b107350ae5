#include "core/exchange/node_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

// Phases of a call:
//
//   1                announced: the call, and the number of rounds that this rank needs
//   2                contributed, in a call of one round. A rank that needs one skips phase 1
//   3 + 2 * round    contributed, in a call of several rounds
//   4 + 2 * round    merged its range. Contributions of the round are no longer read
//
// A rank may overwrite its contribution when all ranks have merged the round before, and its
// published gradients when the leader has drained them. In between, the same place holds the sums
// that Take returns.
namespace tsps {

NodeExchange::NodeExchange(std::string folder, const Options& options,
                           std::unique_ptr<RankFile> own)
    : window_(options.window),
      phases_(std::move(folder), {options.local_rank, options.local_size, options.mergers},
              std::move(own), counters_.waited_ns),
      verdicts_(phases_.peers()) {}

NodeExchange::~NodeExchange() = default;

Result<std::unique_ptr<NodeExchange>> NodeExchange::Create(const std::string& folder,
                                                           const Options& options) {
  const int ranks = options.local_size;
  if (ranks < 1 || options.local_rank < 0 || options.local_rank >= ranks) {
    return Error(Code::kInvalidArgument, "a node's ranks are 0 to ", ranks - 1,
                 ". Received: ", options.local_rank);
  }
  if (options.mergers < 0 || options.mergers > ranks || options.window < 1) {
    return Error(Code::kInvalidArgument, "of ", ranks, " ranks up to ", ranks,
                 " merge, through a window of 1 byte or more. Received: ", options.mergers, ", ",
                 options.window);
  }
  TSPS_ASSIGN_OR_RETURN(auto own,
                        RankFile::Create(folder, options.local_rank, ranks, options.rank));
  return std::unique_ptr<NodeExchange>(new NodeExchange(folder, options, std::move(own)));
}

uint32_t NodeExchange::RoundsFor(size_t bytes, size_t window, size_t local_size) {
  constexpr size_t kMost = 1u << 24;
  return static_cast<uint32_t>(
      std::min(kMost, bytes / std::max<size_t>(1, window / local_size) + 1));
}

Status NodeExchange::Merge(const MergeCall& call, const std::vector<Contribution>& tables,
                           Executor& executor, const Use& use) {
  TSPS_RETURN_IF_ERROR(Begin(call, tables, 0, executor));
  TSPS_RETURN_IF_ERROR(Part([&]() -> Status {
    for (uint32_t round = 0; round < rounds_; ++round) {
      TSPS_RETURN_IF_ERROR(Contribute(tables, round, executor));
      if (Merges()) {
        std::vector<std::vector<GradientSet>> sets;
        TSPS_RETURN_IF_ERROR(ReadRange(round, &sets));
        TSPS_RETURN_IF_ERROR(MergeHere(sets, call.reduction, executor));
        CountMerged(ReadMerged(own().merged(), tables.size(), own().call().dims));
      }
      phases_.Reach(Merged(round));
      TSPS_RETURN_IF_ERROR(Publish(round));
    }
    taken_ = put_ = rounds_;
    return Status();
  }));
  return Finish(use);
}

Status NodeExchange::Begin(const MergeCall& call, const std::vector<Contribution>& tables,
                           uint32_t rounds, Executor& executor) {
  return Part([&] { return BeginCall(call, tables, rounds, executor); });
}

Status NodeExchange::BeginCall(const MergeCall& call, const std::vector<Contribution>& tables,
                               uint32_t rounds, Executor& executor) {
  TSPS_RETURN_IF_ERROR(phases_.CheckCall(call, tables.size()));
  TSPS_RETURN_IF_ERROR(phases_.peers().Open());
  size_t bytes = 0;
  std::vector<size_t> dims;
  for (const Contribution& table : tables) {
    dims.push_back(table.dim);
    bytes += table.n * RowBytes(table.dim, table.counts != nullptr);
    counters_.rows_contributed.fetch_add(table.n, std::memory_order_relaxed);
  }
  counters_.bytes_contributed.fetch_add(bytes, std::memory_order_relaxed);
  const uint32_t needed = RoundsFor(bytes, window_, phases_.n_ranks());
  if (rounds != 0 && rounds < needed) {
    return Error(Code::kInvalidArgument, "operation '", call.operation, "' of step ", call.step,
                 " needs ", needed, " rounds for ", bytes, " bytes. Received: ", rounds);
  }
  rounds_ = std::max(rounds, needed);
  taken_ = put_ = 0;
  TSPS_RETURN_IF_ERROR(phases_.Begin(call, dims, static_cast<uint32_t>(call.reduction), rounds_));
  const auto parts = static_cast<uint32_t>(phases_.n_parts());
  if (rounds_ == 1) {
    order_ = PartOrder(tables, parts, executor);
    TSPS_RETURN_IF_ERROR(Contribute(tables, 0, executor));
  } else {
    phases_.Reach(phases_.Phase(1));
  }
  TSPS_RETURN_IF_ERROR(phases_.AwaitAll(phases_.Phase(1)));
  TSPS_ASSIGN_OR_RETURN(rounds_, phases_.peers().AgreeOnRounds());
  if (rounds_ > 1) order_ = PartOrder(tables, parts * rounds_, executor);
  reduced_.clear();
  for (size_t t = 0; IsLeader() && t < tables.size(); ++t) reduced_.emplace_back(tables[t].dim);
  return Status();
}

Status NodeExchange::Contribute(const std::vector<Contribution>& tables, uint32_t round,
                                Executor& executor) {
  // BeginCall may have contributed already.
  if (own().live().phase.load(std::memory_order_relaxed) >= Contributed(round)) return Status();
  if (round > 0) TSPS_RETURN_IF_ERROR(phases_.AwaitAll(Merged(round - 1)));
  return phases_.Contribute(order_, tables, round * static_cast<uint32_t>(phases_.n_parts()),
                            Contributed(round), executor);
}

Status NodeExchange::ReadRange(uint32_t round, std::vector<std::vector<GradientSet>>* sets) {
  TSPS_RETURN_IF_ERROR(phases_.AwaitAll(Contributed(round)));
  sets->assign(own().call().tables, {});
  return phases_.ReadPart(own().call().dims, sets);
}

Status NodeExchange::MergeHere(const std::vector<std::vector<GradientSet>>& sets,
                               Reduction reduction, Executor& executor) {
  TSPS_RETURN_IF_ERROR(AwaitDrained());
  const ExchangeCall& mine = own().call();
  std::vector<size_t> sizes(sets.size());
  for (size_t t = 0; t < sets.size(); ++t) {
    for (const GradientSet& set : sets[t]) sizes[t] += set.n;
  }
  std::vector<MergedGradients> merged(sets.size());
  std::vector<Status> statuses(sets.size());
  ForEachItem(sizes, executor,
              [&](size_t t) { statuses[t] = MergeKeys(sets[t], reduction, &merged[t]); });
  TSPS_RETURN_IF_ERROR(FirstError(statuses));
  const size_t bytes = MergedAreaBytes(merged, mine.dims);
  TSPS_RETURN_IF_ERROR(own().ReserveMerged(bytes));
  std::vector<float*> rows;
  WriteMergedKeys(merged, mine.dims, own().merged(), &rows);
  own().call().merged_bytes = bytes;
  ForEachItem(sizes, executor, [&](size_t t) {
    statuses[t] = MergeRows(sets[t], mine.dims[t], merged[t], reduction, phases_.call().world_size,
                            rows[t], executor);
  });
  return FirstError(statuses);
}

Status NodeExchange::Take(uint32_t round, const std::vector<Contribution>& tables,
                          Executor& executor, std::vector<GradientSet>* sums) {
  return Part([&]() -> Status {
    if (!phases_.begun() || round >= rounds_ || round != taken_) {
      return Error(Code::kFailedPrecondition, "round ", round, " is not the next of the ",
                   phases_.begun() ? rounds_ : 0, " of operation '", phases_.call().operation, "'");
    }
    ++taken_;
    TSPS_RETURN_IF_ERROR(Contribute(tables, round, executor));
    sums->clear();
    if (Merges()) {
      std::vector<std::vector<GradientSet>> sets;
      TSPS_RETURN_IF_ERROR(ReadRange(round, &sets));
      if (phases_.n_ranks() == 1) {  // there is nothing to merge
        for (const std::vector<GradientSet>& set : sets) sums->push_back(set.front());
      } else {
        TSPS_RETURN_IF_ERROR(MergeHere(sets, Reduction::kSum, executor));
        *sums = ReadMerged(own().merged(), tables.size(), own().call().dims);
      }
      CountMerged(*sums);
    }
    phases_.Reach(Merged(round));
    return Status();
  });
}

Status NodeExchange::Put(uint32_t round, const std::vector<TableSets>& tables, Executor& executor) {
  return Part([&]() -> Status {
    const ExchangeCall& mine = own().call();
    if (!phases_.begun() || !Merges() || round != put_ || put_ >= taken_ ||
        tables.size() != mine.tables) {
      return Error(Code::kFailedPrecondition, "what was sent in round ", round, " for ",
                   tables.size(), " tables is not the next of operation '",
                   phases_.call().operation, "'");
    }
    ++put_;
    std::vector<std::vector<GradientSet>> sets;
    for (size_t t = 0; t < tables.size(); ++t) {
      if (tables[t].dim != mine.dims[t]) {
        return Error(Code::kInvalidArgument, "in operation '", phases_.call().operation,
                     "' rows of table ", t, " have ", mine.dims[t], " floats here and ",
                     tables[t].dim, " on another node");
      }
      sets.push_back(tables[t].sets);
    }
    TSPS_RETURN_IF_ERROR(MergeHere(sets, phases_.call().reduction, executor));
    return Publish(round);
  });
}

void NodeExchange::CountMerged(const std::vector<GradientSet>& sets) {
  for (const GradientSet& set : sets) {
    counters_.rows_merged.fetch_add(set.n, std::memory_order_relaxed);
  }
}

Status NodeExchange::Publish(uint32_t round) {
  if (Merges()) Advance(own().live().published, Merged(round));
  return IsLeader() ? CollectPublished(round) : Status();
}

Status NodeExchange::CollectPublished(uint32_t round) {
  const ExchangeCall& mine = own().call();
  for (size_t r = 0; r < phases_.n_parts(); ++r) {
    const RankFile& file = *phases_.peers().all()[r];
    TSPS_RETURN_IF_ERROR(
        phases_.peers().Await(file.live().published, Merged(round), file, phases_.call()));
    TSPS_RETURN_IF_ERROR(file.CheckMerged(file.call().merged_bytes));
    const std::vector<GradientSet> sets = ReadMerged(file.merged(), mine.tables, mine.dims);
    for (size_t t = 0; t < sets.size(); ++t) {
      if (round + 1 == rounds_) {
        reduced_[t].Add(sets[t]);
      } else {
        reduced_[t].AddCopy(sets[t]);
      }
    }
  }
  // The gradients of the last round stay where they are until Finish.
  if (round + 1 < rounds_) Advance(own().live().drained, Merged(round));
  return Status();
}

Status NodeExchange::Finish(const Use& use) {
  return Part([&]() -> Status {
    if (!phases_.begun())
      return Error(Code::kFailedPrecondition, "no merge has begun in ", phases_.peers().folder());
    if (taken_ != rounds_ || (Merges() && put_ != rounds_)) {
      return Error(Code::kFailedPrecondition, "operation '", phases_.call().operation, "' of step ",
                   phases_.call().step, " was finished before its last round");
    }
    const uint64_t end = Merged(rounds_ - 1);
    if (IsLeader()) {
      TSPS_RETURN_IF_ERROR(use(reduced_));
      reduced_.clear();
      Advance(own().live().drained, end);
    }
    phases_.End(end);
    order_ = PartOrder();
    counters_.calls.fetch_add(1, std::memory_order_relaxed);
    counters_.rounds.fetch_add(rounds_, std::memory_order_relaxed);
    return Status();
  });
}

void NodeExchange::SetStep(int64_t step) {
  own().live().step.store(step, std::memory_order_relaxed);
}

void NodeExchange::Leave() { own().live().left.store(1, std::memory_order_release); }

Status NodeExchange::AwaitDrained() {
  const uint64_t published = own().live().published.load(std::memory_order_relaxed);
  return phases_.peers().Await(phases_.peers().leader().live().drained, published,
                               phases_.peers().leader(), phases_.call());
}

}  // namespace tsps
