#include "core/exchange/node_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

// Phases, counted from `base`, the end of the call before:
//
//   + 1                announced: the call, and how many rounds this rank needs
//   + 2                contributed, in a call of one round: at once when this rank needs no more
//   + 3 + 2 * round    contributed, in a call of several
//   + 4 + 2 * round    merged its range; contributions of the round are read no more
//
// A rank may overwrite its contribution when all ranks have merged the round before, and what it
// has published when the leader has drained that. In the same place lies, between, what Take hands
// out.
namespace tsps {

NodeExchange::NodeExchange(std::string folder, const Options& options,
                           std::unique_ptr<RankFile> own)
    : local_rank_(static_cast<size_t>(options.local_rank)),
      ranks_(static_cast<size_t>(options.local_size)),
      mergers_(static_cast<size_t>(options.mergers == 0 ? options.local_size : options.mergers)),
      window_(options.window),
      peers_(std::move(folder), local_rank_, ranks_, std::move(own), counters_.waited_ns),
      verdicts_(peers_) {}

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

Status NodeExchange::Part(const std::function<Status()>& part) {
  TSPS_RETURN_IF_ERROR(broken_);
  if (!own().OwnedByThisProcess()) {
    return Error(Code::kFailedPrecondition, "a forked child is no rank of the exchange in ",
                 peers_.folder(), ". Start processes with the method `spawn` of multiprocessing");
  }
  Status status;
  try {
    status = part();
  } catch (const std::exception& error) {  // in the middle of a call: the others must know
    status = Error(Code::kResourceExhausted, "out of memory in a merge: ", error.what());
  }
  if (!status.ok()) {
    broken_ = status;
    peers_.TellFailure(status);
  }
  return status;
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
      Advance(own().live().phase, Merged(round));
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
  if (begun_) {
    return Error(Code::kFailedPrecondition, "operation '", call_.operation, "' of step ",
                 call_.step, " was not finished before operation '", call.operation, "' of step ",
                 call.step);
  }
  if (tables.size() > static_cast<size_t>(kMaxTables)) {
    return Error(Code::kInvalidArgument, "an exchange is of at most ", kMaxTables,
                 " tables. Received: ", tables.size());
  }
  if (call.operation.size() >= sizeof(ExchangeCall::operation)) {
    return Error(Code::kInvalidArgument, "an operation's name has at most ",
                 sizeof(ExchangeCall::operation) - 1, " characters. Received: '", call.operation,
                 "'");
  }
  TSPS_RETURN_IF_ERROR(peers_.Open());
  size_t bytes = 0;
  for (const Contribution& table : tables) {
    bytes += table.n * RowBytes(table.dim);
    counters_.rows_contributed.fetch_add(table.n, std::memory_order_relaxed);
  }
  counters_.bytes_contributed.fetch_add(bytes, std::memory_order_relaxed);
  const uint32_t needed = RoundsFor(bytes, window_, ranks_);
  if (rounds != 0 && rounds < needed) {
    return Error(Code::kInvalidArgument, "operation '", call.operation, "' of step ", call.step,
                 " needs ", needed, " rounds for ", bytes, " bytes. Received: ", rounds);
  }
  const uint32_t wanted = std::max(rounds, needed);

  call_ = call;
  begun_ = true;
  taken_ = put_ = 0;
  TSPS_RETURN_IF_ERROR(
      peers_.AwaitAll(base_, call_));  // they have read this rank's last contribution
  Announce(tables, wanted);
  rounds_ = wanted;
  if (wanted == 1) {
    order_ = PartOrder(tables, static_cast<uint32_t>(mergers_), executor);
    TSPS_RETURN_IF_ERROR(Contribute(tables, 0, executor));
  } else {
    Advance(own().live().phase, base_ + 1);
  }
  TSPS_RETURN_IF_ERROR(peers_.AwaitAll(base_ + 1, call_));
  TSPS_ASSIGN_OR_RETURN(rounds_, peers_.AgreeOnRounds());
  if (rounds_ > 1) {
    order_ = PartOrder(tables, static_cast<uint32_t>(mergers_) * rounds_, executor);
  }
  reduced_.clear();
  for (size_t t = 0; IsLeader() && t < tables.size(); ++t) reduced_.emplace_back(tables[t].dim);
  return Status();
}

void NodeExchange::Announce(const std::vector<Contribution>& tables, uint32_t rounds) {
  SetStep(call_.step);
  ExchangeCall& announced = own().call();
  announced.step = call_.step;
  announced.reduction = static_cast<uint32_t>(call_.reduction);
  std::memcpy(announced.operation, call_.operation.c_str(), call_.operation.size() + 1);
  announced.tables = static_cast<uint32_t>(tables.size());
  announced.rounds = rounds;
  for (size_t t = 0; t < tables.size(); ++t) {
    announced.dims[t] = static_cast<uint32_t>(tables[t].dim);
  }
}

Status NodeExchange::Contribute(const std::vector<Contribution>& tables, uint32_t round,
                                Executor& executor) {
  std::atomic<uint64_t>& phase = own().live().phase;
  if (phase.load(std::memory_order_relaxed) >= Contributed(round)) return Status();  // in Begin
  if (round > 0) TSPS_RETURN_IF_ERROR(peers_.AwaitAll(Merged(round - 1), call_));
  const auto parts = static_cast<uint32_t>(mergers_);
  const size_t bytes = order_.AreaBytes(tables, round * parts, parts);
  TSPS_RETURN_IF_ERROR(own().ReserveContribution(bytes));
  order_.WriteArea(tables, round * parts, parts, own().contribution(), executor);
  own().call().contribution_bytes = bytes;
  Advance(phase, Contributed(round));
  return Status();
}

Status NodeExchange::ReadRange(uint32_t round, std::vector<std::vector<GradientSet>>* sets) {
  TSPS_RETURN_IF_ERROR(peers_.AwaitAll(Contributed(round), call_));
  const ExchangeCall& mine = own().call();
  sets->assign(mine.tables, {});
  for (const RankFile* file : peers_.all()) {
    TSPS_RETURN_IF_ERROR(file->CheckContribution(file->call().contribution_bytes));
    ReadContribution(file->contribution(), static_cast<uint32_t>(mergers_),
                     static_cast<uint32_t>(local_rank_), mine.dims, sets);
  }
  return Status();
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
    statuses[t] =
        MergeRows(sets[t], mine.dims[t], merged[t], reduction, call_.world_size, rows[t], executor);
  });
  return FirstError(statuses);
}

Status NodeExchange::Take(uint32_t round, const std::vector<Contribution>& tables,
                          Executor& executor, std::vector<GradientSet>* sums) {
  return Part([&]() -> Status {
    if (!begun_ || round >= rounds_ || round != taken_) {
      return Error(Code::kFailedPrecondition, "round ", round, " is not the next of the ",
                   begun_ ? rounds_ : 0, " of operation '", call_.operation, "'");
    }
    ++taken_;
    TSPS_RETURN_IF_ERROR(Contribute(tables, round, executor));
    sums->clear();
    if (Merges()) {
      std::vector<std::vector<GradientSet>> sets;
      TSPS_RETURN_IF_ERROR(ReadRange(round, &sets));
      if (ranks_ == 1) {  // there is nothing to merge
        for (const std::vector<GradientSet>& one : sets) sums->push_back(one.front());
      } else {
        TSPS_RETURN_IF_ERROR(MergeHere(sets, Reduction::kSum, executor));
        *sums = ReadMerged(own().merged(), tables.size(), own().call().dims);
      }
      CountMerged(*sums);
    }
    Advance(own().live().phase, Merged(round));
    return Status();
  });
}

Status NodeExchange::Put(uint32_t round, const std::vector<TableSets>& tables, Executor& executor) {
  return Part([&]() -> Status {
    const ExchangeCall& mine = own().call();
    if (!begun_ || !Merges() || round != put_ || put_ >= taken_ || tables.size() != mine.tables) {
      return Error(Code::kFailedPrecondition, "what was sent in round ", round, " for ",
                   tables.size(), " tables is not the next of operation '", call_.operation, "'");
    }
    ++put_;
    std::vector<std::vector<GradientSet>> sets;
    for (size_t t = 0; t < tables.size(); ++t) {
      if (tables[t].dim != mine.dims[t]) {
        return Error(Code::kInvalidArgument, "in operation '", call_.operation, "' rows of table ",
                     t, " have ", mine.dims[t], " floats here and ", tables[t].dim,
                     " on another node");
      }
      sets.push_back(tables[t].sets);
    }
    TSPS_RETURN_IF_ERROR(MergeHere(sets, call_.reduction, executor));
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
  for (size_t r = 0; r < mergers_; ++r) {
    const RankFile& file = *peers_.all()[r];
    TSPS_RETURN_IF_ERROR(peers_.Await(file.live().published, Merged(round), file, call_));
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
  // The last round's stay where they are until Finish.
  if (round + 1 < rounds_) Advance(own().live().drained, Merged(round));
  return Status();
}

Status NodeExchange::Finish(const Use& use) {
  return Part([&]() -> Status {
    if (!begun_) return Error(Code::kFailedPrecondition, "no merge has begun in ", peers_.folder());
    if (taken_ != rounds_ || (Merges() && put_ != rounds_)) {
      return Error(Code::kFailedPrecondition, "operation '", call_.operation, "' of step ",
                   call_.step, " was finished before its last round");
    }
    const uint64_t end = Merged(rounds_ - 1);
    if (IsLeader()) {
      TSPS_RETURN_IF_ERROR(use(reduced_));
      reduced_.clear();
      Advance(own().live().drained, end);
    }
    base_ = end;
    begun_ = false;
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
  return peers_.Await(peers_.leader().live().drained, published, peers_.leader(), call_);
}

}  // namespace tsps
