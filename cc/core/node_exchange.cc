#include "core/node_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/futex.h"
#include "core/group_impl.h"
#include "core/process_state.h"

// Phases, counted from `base`, the end of the call before:
//
//   + 1                announced: the call, and how many rounds this rank needs
//   + 2                contributed, in a call of one round: at once when this rank needs no more
//   + 3 + 2 * round    contributed, in a call of several
//   + 4 + 2 * round    merged
//
// A rank may overwrite its contribution when all ranks have merged the round before, and what it
// has merged when the leader has drained that.
namespace tsps {
namespace {

constexpr int kLookMs = 100;  // between two looks at a rank that is awaited
constexpr size_t kCopyGrain = 1024;

// Which of `parts` equal parts of the hash space a key belongs to. Independent of the hashes that
// tables and Dedupe use, whose slots would otherwise be crowded in a part.
inline uint32_t PartOf(int64_t key, uint32_t parts) {
  uint64_t h = static_cast<uint64_t>(key) * 0xD6E8FEB86659FD93u;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93u;
  h ^= h >> 32;
  return static_cast<uint32_t>((static_cast<unsigned __int128>(h) * parts) >> 64);
}

// A table's rows in a contribution; range r is [starts[r], starts[r + 1]).
struct Grouped {
  uint32_t* starts;
  int64_t* keys;
  float* rows;

  // `n`: null when it is in the area, as starts[ranges].
  static Grouped Take(ArrayArea& area, size_t ranges, const size_t* n, size_t dim) {
    Grouped grouped;
    grouped.starts = area.Take<uint32_t>(ranges + 1);
    const size_t rows = n != nullptr ? *n : grouped.starts[ranges];
    grouped.keys = area.Take<int64_t>(rows);
    grouped.rows = area.Take<float>(rows * dim);
    return grouped;
  }
};

// A table's rows in what a rank has merged.
struct MergedRows {
  uint32_t* n;
  int64_t* keys;
  int32_t* counts;
  float* rows;

  static MergedRows Take(ArrayArea& area, const size_t* n, size_t dim) {
    MergedRows merged;
    merged.n = area.Take<uint32_t>(1);
    const size_t rows = n != nullptr ? *n : *merged.n;
    merged.keys = area.Take<int64_t>(rows);
    merged.counts = area.Take<int32_t>(rows);
    merged.rows = area.Take<float>(rows * dim);
    return merged;
  }
};

}  // namespace

NodeExchange::NodeExchange(std::string folder, int local_rank, int local_size, size_t window,
                           std::unique_ptr<RankFile> own)
    : folder_(std::move(folder)),
      local_rank_(static_cast<size_t>(local_rank)),
      ranks_(static_cast<size_t>(local_size)),
      window_(window / static_cast<size_t>(local_size)),
      own_(std::move(own)),
      peers_(ranks_),
      files_(ranks_) {
  files_[local_rank_] = own_.get();
}

NodeExchange::~NodeExchange() = default;

Result<std::unique_ptr<NodeExchange>> NodeExchange::Create(const std::string& folder,
                                                           int local_rank, int local_size,
                                                           int64_t rank, size_t window) {
  if (local_size < 1 || local_rank < 0 || local_rank >= local_size) {
    return Error(Code::kInvalidArgument, "a node's ranks are 0 to ", local_size - 1,
                 ". Received: ", local_rank);
  }
  TSPS_ASSIGN_OR_RETURN(auto own, RankFile::Create(folder, local_rank, local_size, rank));
  return std::unique_ptr<NodeExchange>(
      new NodeExchange(folder, local_rank, local_size, window, std::move(own)));
}

Status NodeExchange::OpenPeers() {
  for (size_t r = 0; r < ranks_; ++r) {
    if (files_[r] != nullptr) continue;
    TSPS_ASSIGN_OR_RETURN(peers_[r],
                          RankFile::Open(folder_, static_cast<int>(r), static_cast<int>(ranks_)));
    files_[r] = peers_[r].get();
  }
  return Status();
}

Status NodeExchange::Merge(const MergeCall& call, const std::vector<Contribution>& tables,
                           Executor& executor, const Reader& read) {
  TSPS_RETURN_IF_ERROR(broken_);
  if (!own_->OwnedByThisProcess()) {
    return Error(Code::kFailedPrecondition, "a forked child is no rank of the exchange in ",
                 folder_);
  }
  Status status;
  try {
    status = OpenPeers();
    if (status.ok()) status = MergeRounds(call, tables, executor, read);
  } catch (const std::exception& error) {  // in the middle of a call: the others must know
    status = Error(Code::kResourceExhausted, "out of memory in a merge: ", error.what());
  }
  if (!status.ok()) {
    broken_ = status;
    ExchangeLive& live = own_->live();
    const std::string& text = status.message();
    std::memcpy(live.failure, text.c_str(), std::min(text.size() + 1, sizeof(live.failure) - 1));
    live.failed.store(1, std::memory_order_release);
    FutexWakeAll(live.phase);
    FutexWakeAll(live.drained);
  }
  return status;
}

Status NodeExchange::MergeRounds(const MergeCall& call, const std::vector<Contribution>& tables,
                                 Executor& executor, const Reader& read) {
  if (tables.size() > static_cast<size_t>(kMaxTables)) {
    return Error(Code::kInvalidArgument, "an exchange is of at most ", kMaxTables,
                 " tables. Received: ", tables.size());
  }
  if (call.operation.size() >= sizeof(ExchangeCall::operation)) {
    return Error(Code::kInvalidArgument, "an operation's name has at most ",
                 sizeof(ExchangeCall::operation) - 1, " characters. Received: '", call.operation,
                 "'");
  }
  size_t bytes = 0;
  for (const Contribution& table : tables) {
    bytes += table.n * (sizeof(int64_t) + table.dim * sizeof(float));
    counters_.rows_contributed.fetch_add(table.n, std::memory_order_relaxed);
  }
  counters_.bytes_contributed.fetch_add(bytes, std::memory_order_relaxed);
  const auto wanted = static_cast<uint32_t>(bytes / window_ + 1);

  TSPS_RETURN_IF_ERROR(AwaitAll(base_, call));  // they have read this rank's last contribution
  Announce(call, tables, wanted);
  if (wanted == 1) TSPS_RETURN_IF_ERROR(Contribute(tables, 0, 1, executor));
  Advance(base_ + (wanted == 1 ? 2 : 1));
  TSPS_RETURN_IF_ERROR(AwaitAll(base_ + 1, call));
  TSPS_ASSIGN_OR_RETURN(const uint32_t rounds, AgreeOnRounds());

  const std::atomic<uint64_t>& drained = files_[0]->live().drained;
  uint64_t merged_before = base_;
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint64_t contributed = base_ + (rounds == 1 ? 2 : 3 + 2 * uint64_t{round});
    const uint64_t merged = base_ + 4 + 2 * uint64_t{round};
    if (rounds > 1) {
      TSPS_RETURN_IF_ERROR(Contribute(tables, round, rounds, executor));
      Advance(contributed);
    }
    TSPS_RETURN_IF_ERROR(AwaitAll(contributed, call));
    TSPS_RETURN_IF_ERROR(Await(drained, merged_before, *files_[0], call));
    TSPS_RETURN_IF_ERROR(MergeRange(call, executor));
    Advance(merged);
    const bool last = round + 1 == rounds;
    if (local_rank_ == 0 || !last) TSPS_RETURN_IF_ERROR(AwaitAll(merged, call));
    if (local_rank_ == 0) {
      TSPS_RETURN_IF_ERROR(ReadMerged(read, last));
      own_->live().drained.store(merged, std::memory_order_release);
      FutexWakeAll(own_->live().drained);
    }
    merged_before = merged;
  }
  base_ = merged_before;
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  counters_.rounds.fetch_add(rounds, std::memory_order_relaxed);
  return Status();
}

void NodeExchange::Announce(const MergeCall& call, const std::vector<Contribution>& tables,
                            uint32_t rounds) {
  SetStep(call.step);
  ExchangeCall& announced = own_->call();
  announced.step = call.step;
  announced.reduction = static_cast<uint32_t>(call.reduction);
  std::memcpy(announced.operation, call.operation.c_str(), call.operation.size() + 1);
  announced.tables = static_cast<uint32_t>(tables.size());
  announced.rounds = rounds;
  for (size_t t = 0; t < tables.size(); ++t) {
    announced.dims[t] = static_cast<uint32_t>(tables[t].dim);
  }
}

Result<uint32_t> NodeExchange::AgreeOnRounds() const {
  const ExchangeCall& mine = own_->call();
  uint64_t rounds = 1;
  for (const RankFile* file : files_) {
    const ExchangeCall& theirs = file->call();
    if (std::strncmp(theirs.operation, mine.operation, sizeof(mine.operation)) != 0 ||
        theirs.tables != mine.tables || theirs.step != mine.step ||
        theirs.reduction != mine.reduction) {
      const auto describe = [](const RankFile& rank) {
        const ExchangeCall& call = rank.call();
        return "rank " + std::to_string(rank.live().rank.load()) + " merges " +
               std::to_string(call.tables) + " tables for step " + std::to_string(call.step) +
               " in operation '" + call.operation + "'";
      };
      return Error(Code::kInvalidArgument, describe(*file), ", ", describe(*own_),
                   ": all ranks must run the same steps, with the same options, in the same order");
    }
    for (uint32_t t = 0; t < mine.tables; ++t) {
      if (theirs.dims[t] == mine.dims[t]) continue;
      return Error(Code::kInvalidArgument, "in operation '", mine.operation, "' rows of table ", t,
                   " have ", theirs.dims[t], " floats on rank ", file->live().rank.load(), " and ",
                   mine.dims[t], " on rank ", own_->live().rank.load());
    }
    rounds = std::max(rounds, theirs.rounds);
  }
  return static_cast<uint32_t>(rounds);
}

Status NodeExchange::Contribute(const std::vector<Contribution>& tables, uint32_t round,
                                uint32_t rounds, Executor& executor) {
  const auto ranges = static_cast<uint32_t>(ranks_);
  const uint32_t first_part = round * ranges;
  // Positions of this round's rows, range by range.
  std::vector<std::vector<uint32_t>> starts(tables.size()), order(tables.size());
  std::vector<size_t> sizes;
  for (const Contribution& table : tables) sizes.push_back(table.n);
  ForEachItem(sizes, executor, [&](size_t t) {
    const Contribution& table = tables[t];
    std::vector<uint32_t>& ends = starts[t];
    ends.assign(ranges + 1, 0);
    const auto range_of = [&](size_t i) {  // >= ranges: not in this round
      return PartOf(table.keys[i], ranges * rounds) - first_part;
    };
    for (size_t i = 0; i < table.n; ++i) {
      const uint32_t range = range_of(i);
      if (range < ranges) ++ends[range + 1];
    }
    for (uint32_t r = 0; r < ranges; ++r) ends[r + 1] += ends[r];
    order[t].resize(ends[ranges]);
    std::vector<uint32_t> next(ends.begin(), ends.end() - 1);
    for (size_t i = 0; i < table.n; ++i) {
      const uint32_t range = range_of(i);
      if (range < ranges) order[t][next[range]++] = static_cast<uint32_t>(i);
    }
  });

  const auto lay_out = [&](char* base, std::vector<Grouped>* grouped) {
    ArrayArea area(base);
    for (size_t t = 0; t < tables.size(); ++t) {
      const size_t n = order[t].size();
      const Grouped one = Grouped::Take(area, ranges, &n, tables[t].dim);
      if (grouped != nullptr) grouped->push_back(one);
    }
    return area.bytes();
  };
  const size_t bytes = lay_out(nullptr, nullptr);
  TSPS_RETURN_IF_ERROR(own_->ReserveContribution(bytes));
  std::vector<Grouped> grouped;
  lay_out(own_->contribution(), &grouped);
  own_->call().contribution_bytes = bytes;
  ForEachItem(sizes, executor, [&](size_t t) {
    const size_t dim = tables[t].dim;
    std::copy(starts[t].begin(), starts[t].end(), grouped[t].starts);
    executor.ParallelFor(order[t].size(), kCopyGrain, [&](size_t begin, size_t end) {
      for (size_t k = begin; k < end; ++k) {
        const uint32_t i = order[t][k];
        grouped[t].keys[k] = tables[t].keys[i];
        std::memcpy(grouped[t].rows + k * dim, tables[t].rows + i * dim, dim * sizeof(float));
      }
    });
  });
  return Status();
}

Status NodeExchange::MergeRange(const MergeCall& call, Executor& executor) {
  const ExchangeCall& mine = own_->call();
  const size_t tables = mine.tables;
  std::vector<std::vector<GradientSet>> sets(tables);  // [table][rank]
  std::vector<size_t> sizes(tables);
  for (const RankFile* file : files_) {
    TSPS_RETURN_IF_ERROR(file->CheckContribution(file->call().contribution_bytes));
    ArrayArea area(file->contribution());
    for (size_t t = 0; t < tables; ++t) {
      const size_t dim = mine.dims[t];
      const Grouped grouped = Grouped::Take(area, ranks_, nullptr, dim);
      const uint32_t begin = grouped.starts[local_rank_], end = grouped.starts[local_rank_ + 1];
      sets[t].push_back({grouped.keys + begin, nullptr, grouped.rows + begin * dim, end - begin});
      sizes[t] += end - begin;
    }
  }
  std::vector<MergedGradients> merged(tables);
  std::vector<Status> statuses(tables);
  ForEachItem(sizes, executor, [&](size_t t) {
    statuses[t] = MergeKeys(sets[t], call.reduction, &merged[t], executor);
  });
  TSPS_RETURN_IF_ERROR(FirstError(statuses));

  const auto lay_out = [&](char* base, std::vector<MergedRows>* rows) {
    ArrayArea area(base);
    for (size_t t = 0; t < tables; ++t) {
      const size_t n = merged[t].keys.size();
      const MergedRows one = MergedRows::Take(area, &n, mine.dims[t]);
      if (rows != nullptr) rows->push_back(one);
    }
    return area.bytes();
  };
  const size_t bytes = lay_out(nullptr, nullptr);
  TSPS_RETURN_IF_ERROR(own_->ReserveMerged(bytes));
  std::vector<MergedRows> out;
  lay_out(own_->merged(), &out);
  own_->call().merged_bytes = bytes;
  ForEachItem(sizes, executor, [&](size_t t) {
    *out[t].n = static_cast<uint32_t>(merged[t].keys.size());
    std::copy(merged[t].keys.begin(), merged[t].keys.end(), out[t].keys);
    std::copy(merged[t].counts.begin(), merged[t].counts.end(), out[t].counts);
    statuses[t] = MergeRows(sets[t], mine.dims[t], merged[t], call.reduction, call.world_size,
                            out[t].rows, executor);
  });
  for (const MergedGradients& one : merged) {
    counters_.rows_merged.fetch_add(one.keys.size(), std::memory_order_relaxed);
  }
  return FirstError(statuses);
}

Status NodeExchange::ReadMerged(const Reader& read, bool last) const {
  const ExchangeCall& mine = own_->call();
  Merged merged(mine.tables);
  for (const RankFile* file : files_) {
    TSPS_RETURN_IF_ERROR(file->CheckMerged(file->call().merged_bytes));
    ArrayArea area(file->merged());
    for (size_t t = 0; t < mine.tables; ++t) {
      const MergedRows rows = MergedRows::Take(area, nullptr, mine.dims[t]);
      merged[t].push_back({rows.keys, rows.counts, rows.rows, *rows.n});
    }
  }
  return read(merged, last);
}

void NodeExchange::SetStep(int64_t step) {
  own_->live().step.store(step, std::memory_order_relaxed);
}

void NodeExchange::Leave() { own_->live().left.store(1, std::memory_order_release); }

void NodeExchange::Advance(uint64_t phase) {
  std::atomic<uint64_t>& word = own_->live().phase;
  word.store(phase, std::memory_order_release);
  FutexWakeAll(word);
}

Status NodeExchange::AwaitAll(uint64_t phase, const MergeCall& call) {
  for (const RankFile* file : files_) {
    TSPS_RETURN_IF_ERROR(Await(file->live().phase, phase, *file, call));
  }
  return Status();
}

Status NodeExchange::Await(const std::atomic<uint64_t>& word, uint64_t target, const RankFile& peer,
                           const MergeCall& call) {
  uint64_t seen = word.load(std::memory_order_acquire);
  if (seen >= target) return Status();
  const uint64_t began = NowNs();
  const uint64_t deadline = began + static_cast<uint64_t>(std::min(call.timeout_s, 1e9) * 1e9);
  uint64_t look = began + kLookMs * 1000000ull;
  while (seen < target) {
    TSPS_RETURN_IF_ERROR(FailureOf(peer));
    FutexWait(word, seen, kLookMs);
    seen = word.load(std::memory_order_acquire);
    const uint64_t now = NowNs();
    if (seen >= target || now < look) continue;
    look = now + kLookMs * 1000000ull;
    if (call.cancelled != nullptr && call.cancelled->load()) {
      return Error(Code::kUnavailable, "operation '", call.operation, "' of step ", call.step,
                   " was cancelled");
    }
    if (!peer.Alive() && word.load(std::memory_order_acquire) < target) {
      TSPS_RETURN_IF_ERROR(FailureOf(peer));  // it may have said why, since
      return Error(Code::kUnavailable, "rank ", peer.live().rank.load(), " (pid ",
                   peer.live().pid.load(), ") ", peer.live().left.load() ? "ended" : "died",
                   " in step ", peer.live().step.load(), "; rank ", own_->live().rank.load(),
                   " was waiting for it in operation '", call.operation, "' of step ", call.step);
    }
    if (now >= deadline) return Late(peer, call);
  }
  counters_.waited_ns.fetch_add(NowNs() - began, std::memory_order_relaxed);
  return Status();
}

Status NodeExchange::FailureOf(const RankFile& peer) {
  if (peer.live().failed.load(std::memory_order_acquire) == 0) return Status();
  return Error(Code::kAborted, "rank ", peer.live().rank.load(), " (pid ", peer.live().pid.load(),
               ") failed in step ", peer.live().step.load(), ": ", peer.live().failure);
}

Status NodeExchange::Late(const RankFile& peer, const MergeCall& call) const {
  const int64_t pid = peer.live().pid.load();
  return Error(Code::kDeadlineExceeded, "rank ", own_->live().rank.load(), " waited ",
               call.timeout_s, " s for rank ", peer.live().rank.load(), " (pid ", pid,
               ") in operation '", call.operation, "' of step ", call.step, ": that process is ",
               ProcessState(pid), ", and step ", peer.live().step.load(),
               " is the last it has come to. TFSPS_TIMEOUT_S sets how long to wait");
}

}  // namespace tsps
