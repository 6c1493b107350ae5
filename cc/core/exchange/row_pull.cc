#include "core/exchange/row_pull.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/key_owner.h"
#include "core/gradients/dedupe.h"
#include "core/gradients/sort_keys.h"

// Phases of a call:
//
//   1    contributed: the call, and keys
//   2    read what others have contributed to its range
//   3    `published`: the rows that were fetched can be read
//   4    has copied the rows that it asked for
namespace tsps {
namespace {

constexpr uint64_t kContributed = 1, kRead = 2, kAnswered = 3, kCollected = 4;
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr size_t kRowCopyGrain = 1024;

// The rows of one table that were fetched, in the area of a rank that sends.
struct Answered {
  uint32_t* counts;                       // [rank]: keys that it asked for; then the number of rows
  std::vector<uint32_t*> positions = {};  // [rank]: the position of each such key's row
  uint8_t* present = nullptr;             // [row]
  float* rows = nullptr;

  // `counts`: null when they are in the area.
  static Answered Take(ArrayArea& area, size_t ranks, const uint32_t* counts, size_t dim) {
    Answered answered = {area.Take<uint32_t>(ranks + 1)};
    const uint32_t* const n = counts != nullptr ? counts : answered.counts;
    for (size_t r = 0; r < ranks; ++r) answered.positions.push_back(area.Take<uint32_t>(n[r]));
    answered.present = area.Take<uint8_t>(n[ranks]);
    answered.rows = area.Take<float>(n[ranks] * dim);
    return answered;
  }
};

}  // namespace

RowPull::RowPull(const std::string& folder, const Options& options, std::unique_ptr<RankFile> own)
    : nodes_(options.nodes),
      node_(options.node),
      phases_(folder, {options.local_rank, options.local_size, options.mergers}, std::move(own),
              waited_ns_) {}

Result<std::unique_ptr<RowPull>> RowPull::Create(const std::string& folder,
                                                 const Options& options) {
  if (options.node >= options.nodes) {
    return Error(Code::kInvalidArgument, "a job's nodes are 0 to ", options.nodes - 1,
                 ". Received: ", options.node);
  }
  TSPS_ASSIGN_OR_RETURN(
      auto own, RankFile::Create(folder, options.local_rank, options.local_size, options.rank));
  return std::unique_ptr<RowPull>(new RowPull(folder, options, std::move(own)));
}

// Ranks reach their first call of an operation at different times.
Status RowPull::AwaitFiles(const MergeCall& call) {
  const uint64_t deadline = NowNs() + static_cast<uint64_t>(std::min(call.timeout_s, 1e9) * 1e9);
  while (true) {
    const Status opened = phases_.peers().Open();
    if (opened.ok()) return opened;
    if (call.cancelled != nullptr && call.cancelled->load()) {
      return Error(Code::kUnavailable, "operation '", call.operation, "' was cancelled");
    }
    if (NowNs() > deadline) {
      return Error(Code::kDeadlineExceeded, "rank ", own().live().rank.load(), " waited ",
                   call.timeout_s, " s for the other ranks of its node to reach operation '",
                   call.operation, "' (", opened.message(),
                   "). Lookups of sharded tables are made by all ranks together. TFSPS_TIMEOUT_S ",
                   "sets how long to wait");
    }
    std::this_thread::sleep_for(kPoll);
  }
}

Status RowPull::Ask(const MergeCall& call, const std::vector<AskedKeys>& tables,
                    const AskOptions& options, Executor& executor) {
  return Part([&]() -> Status {
    TSPS_RETURN_IF_ERROR(phases_.CheckCall(call, tables.size()));
    TSPS_RETURN_IF_ERROR(AwaitFiles(call));
    options_ = options;
    std::vector<size_t> dims;
    for (const AskedKeys& table : tables) dims.push_back(table.dim);
    TSPS_RETURN_IF_ERROR(phases_.Begin(call, dims, options.here ? 1 : 0, options.flag ? 2 : 1));
    TSPS_RETURN_IF_ERROR(Contribute(tables, executor));
    TSPS_RETURN_IF_ERROR(phases_.AwaitAll(phases_.Phase(kContributed)));
    TSPS_ASSIGN_OR_RETURN(const uint32_t rounds, phases_.peers().AgreeOnRounds());
    flag_ = rounds > 1;
    if (Sends()) TSPS_RETURN_IF_ERROR(TakeRange(executor));
    phases_.Reach(phases_.Phase(kRead));
    return Status();
  });
}

Status RowPull::Contribute(const std::vector<AskedKeys>& tables, Executor& executor) {
  asked_.assign(tables.size(), {});
  std::vector<Contribution> contributions;
  std::vector<std::vector<int64_t>> here(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    Asked& asked = asked_[t];
    asked.dim = tables[t].dim;
    for (size_t i = 0; i < tables[t].n; ++i) {
      const auto place = static_cast<uint32_t>(i);
      if (OwnerOf(tables[t].keys[i], nodes_) == node_) {
        asked.own.push_back(place);
        if (options_.here) here[t].push_back(tables[t].keys[i]);
      } else if (tables[t].have == nullptr || tables[t].have[i] == 0) {
        asked.keys.push_back(tables[t].keys[i]);
        asked.places.push_back(place);
      }
    }
    contributions.push_back({asked.keys.data(), nullptr, nullptr, asked.keys.size(), 0});
  }
  for (size_t t = 0; options_.here && t < tables.size(); ++t) {
    contributions.push_back({here[t].data(), nullptr, nullptr, here[t].size(), 0});
  }
  order_ = PartOrder(contributions, static_cast<uint32_t>(phases_.n_parts()), executor);
  return phases_.Contribute(order_, contributions, 0, phases_.Phase(kContributed), executor);
}

Status RowPull::TakeRange(Executor& executor) {
  const size_t n_tables = asked_.size();
  const size_t n_ranks = phases_.n_ranks();
  std::vector<std::vector<GradientSet>> sets(options_.here ? 2 * n_tables : n_tables);
  const std::vector<uint32_t> no_rows(sets.size(), 0);
  TSPS_RETURN_IF_ERROR(phases_.ReadPart(no_rows.data(), &sets));
  here_.assign(n_tables, {});
  for (size_t t = 0; options_.here && t < n_tables; ++t) {
    for (const GradientSet& set : sets[n_tables + t]) {
      here_[t].insert(here_[t].end(), set.keys, set.keys + set.n);
    }
  }
  wanted_.assign(n_tables, {});
  positions_.assign(n_tables, {});
  std::vector<size_t> sizes(n_tables);
  for (size_t t = 0; t < n_tables; ++t) {
    for (const GradientSet& set : sets[t]) sizes[t] += set.n;
  }
  ForEachItem(sizes, executor, [&](size_t t) {
    std::vector<std::vector<int32_t>> inverses(n_ranks);
    std::vector<IdSpan> spans;
    for (size_t r = 0; r < n_ranks; ++r) {
      inverses[r].resize(sets[t][r].n);
      spans.push_back({sets[t][r].keys, sets[t][r].n, inverses[r].data()});
    }
    const std::vector<int64_t> unique = Dedupe(spans);
    const std::unique_ptr<KeyPosition[]> sorted = SortKeys(unique.data(), unique.size());
    Wanted& wanted = wanted_[t];
    wanted.starts.assign(nodes_ + 1, 0);
    for (const int64_t key : unique) ++wanted.starts[OwnerOf(key, nodes_) + 1];
    for (uint32_t node = 0; node < nodes_; ++node) wanted.starts[node + 1] += wanted.starts[node];
    wanted.keys.resize(unique.size());
    std::vector<size_t> next(wanted.starts.begin(), wanted.starts.end() - 1);
    std::vector<uint32_t> place_of(unique.size());
    for (size_t i = 0; i < unique.size(); ++i) {
      const size_t place = next[OwnerOf(sorted[i].key, nodes_)]++;
      wanted.keys[place] = sorted[i].key;
      place_of[sorted[i].position] = static_cast<uint32_t>(place);
    }
    positions_[t].resize(n_ranks);
    for (size_t r = 0; r < n_ranks; ++r) {
      for (const int32_t at : inverses[r]) {
        positions_[t][r].push_back(place_of[static_cast<size_t>(at)]);
      }
    }
  });
  return Status();
}

Status RowPull::Answer(
    const std::function<Result<bool>(const std::vector<Fetched>& tables)>& fill) {
  return Part([&]() -> Status {
    if (!phases_.begun() || !Sends()) {
      return Error(Code::kFailedPrecondition, "nothing was asked for in ",
                   phases_.peers().folder());
    }
    std::vector<std::vector<uint32_t>> counts(asked_.size());
    uint32_t* agreed = nullptr;
    const auto lay_out = [&](ArrayArea area) {
      std::vector<Answered> tables;
      agreed = area.Take<uint32_t>(1);
      for (size_t t = 0; t < asked_.size(); ++t) {
        tables.push_back(Answered::Take(area, phases_.n_ranks(), counts[t].data(), asked_[t].dim));
      }
      return std::make_pair(std::move(tables), area.bytes());
    };
    for (size_t t = 0; t < asked_.size(); ++t) {
      for (const auto& of_rank : positions_[t]) {
        counts[t].push_back(static_cast<uint32_t>(of_rank.size()));
      }
      counts[t].push_back(static_cast<uint32_t>(wanted_[t].keys.size()));
    }
    const size_t bytes = lay_out(ArrayArea(nullptr)).second;
    TSPS_RETURN_IF_ERROR(own().ReserveMerged(bytes));
    const std::vector<Answered> tables = lay_out(ArrayArea(own().merged())).first;
    std::vector<Fetched> fetched;
    for (size_t t = 0; t < asked_.size(); ++t) {
      std::copy(counts[t].begin(), counts[t].end(), tables[t].counts);
      for (size_t r = 0; r < phases_.n_ranks(); ++r) {
        std::copy(positions_[t][r].begin(), positions_[t][r].end(), tables[t].positions[r]);
      }
      std::fill_n(tables[t].present, wanted_[t].keys.size(), 0);
      fetched.push_back({tables[t].rows, tables[t].present});
    }
    TSPS_ASSIGN_OR_RETURN(const bool all_agree, fill(fetched));
    *agreed = all_agree ? 1 : 0;
    own().call().merged_bytes = bytes;
    wanted_.clear();
    here_.clear();
    positions_.clear();
    Advance(own().live().published, phases_.Phase(kAnswered));
    return Status();
  });
}

Status RowPull::Collect(const RowTargets& targets, Executor& executor) {
  return Part([&]() -> Status {
    if (!phases_.begun() || targets.size() != asked_.size()) {
      return Error(Code::kFailedPrecondition, "rows of ", targets.size(),
                   " tables were not asked for in ", phases_.peers().folder());
    }
    for (size_t s = 0; s < phases_.n_parts(); ++s) {
      const RankFile& file = *phases_.peers().all()[s];
      TSPS_RETURN_IF_ERROR(phases_.peers().Await(file.live().published, phases_.Phase(kAnswered),
                                                 file, phases_.call()));
      TSPS_RETURN_IF_ERROR(file.CheckMerged(file.call().merged_bytes));
      ArrayArea area(file.merged());
      agreed_ = *area.Take<uint32_t>(1) != 0;
      for (size_t t = 0; t < asked_.size(); ++t) {
        const size_t dim = asked_[t].dim;
        const Answered answered = Answered::Take(area, phases_.n_ranks(), nullptr, dim);
        const uint32_t* const positions = answered.positions[phases_.local_rank()];
        const PartOrder::Rows part = order_.Part(t, static_cast<uint32_t>(s));
        if (part.n != answered.counts[phases_.local_rank()]) {
          return Error(Code::kInternal, "rank ", file.live().rank.load(), " has ",
                       answered.counts[phases_.local_rank()], " rows of table ", t, " for rank ",
                       own().live().rank.load(), ", which asked for ", part.n);
        }
        const RowTarget& target = targets[t];
        std::atomic<bool> missing{false};
        executor.ParallelFor(part.n, kRowCopyGrain, [&](size_t begin, size_t end) {
          for (size_t i = begin; i < end; ++i) {
            const size_t place = asked_[t].places[part.positions[i]];
            const bool arrived = answered.present[positions[i]] != 0;
            if (target.present != nullptr) target.present[place] = arrived ? 1 : 0;
            if (arrived) {
              std::memcpy(target.rows + place * dim, answered.rows + positions[i] * dim,
                          dim * sizeof(float));
            } else if (target.present == nullptr) {
              missing = true;
            }
          }
        });
        if (missing) {
          return Error(Code::kInternal, "rows of table ", t, " in operation '",
                       phases_.call().operation, "' did not arrive");
        }
      }
    }
    const uint64_t end = phases_.Phase(kCollected);
    phases_.End(end);
    asked_.clear();
    order_ = PartOrder();
    phases_.Reach(end);
    return Status();
  });
}

}  // namespace tsps
