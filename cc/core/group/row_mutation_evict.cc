// Chooses the rows that a step evicts (eviction_policy.h).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/row_mutation.h"
#include "core/table/index.h"

namespace tsps {
namespace {

// The distance of the positions of two consecutive steps: 2^64 divided by the golden ratio. The
// positions of n steps divide the circle of hashes into n parts of similar lengths, for every n.
constexpr uint64_t kStride = 0x9E3779B97F4A7C15u;

struct Candidate {
  uint64_t hash;
  ErasedEntry entry;  // of a row in memory
  uint32_t place;     // of a row on disk; kNoRecord: the row is in memory
  RecordUse on_disk;  // its key and use
  uint64_t rank;      // the candidates with the lowest ranks are evicted first

  uint32_t row() const { return entry.row_plus_one - 1; }
};

// Visits the keys whose hashes are `begin` to `begin + span`, modulo 2^64, segment by segment:
// visit(hash, segment, entry). `check` is called for each segment before.
template <typename Check, typename Visit>
Status ForEachKey(const TableFiles& files, const TableState& state, uint64_t begin, uint64_t span,
                  const Check& check, const Visit& visit) {
  for (uint64_t offset = 0; offset <= span;) {  // from `begin`
    const uint64_t first = begin + offset;
    const uint32_t number = files.directory_entries()[DirectoryPosition(first, state.depth)];
    TSPS_RETURN_IF_ERROR(check(number));
    const Segment& segment = *files.segment(number);
    // The offset where the next segment begins. It is not above `offset` if this one goes as far
    // as `begin`, all around the circle.
    const uint64_t width = segment.local_depth == 0 ? 0 : uint64_t{1} << (64 - segment.local_depth);
    const uint64_t next = width == 0 ? 0 : (first & ~(width - 1)) + width - begin;
    const uint64_t last = next > offset ? std::min(span, next - 1) : span;
    for (uint32_t i = 0; i < kSegmentEntries; ++i) {
      const Entry& entry = segment.entries[i];
      if (entry.row_plus_one == 0 || entry.row_plus_one == kTombstone) continue;
      const uint64_t hash = HashKey(entry.key, state.index_seed);
      if (hash - begin >= offset && hash - begin <= last) visit(hash, number, i);
    }
    if (next <= offset) break;
    offset = next;
  }
  return Status();
}

// Returns how far hashes reach that are those of `n` of `rows` keys, on average.
uint64_t SpanOf(uint64_t n, uint64_t rows) {
  return n >= rows ? UINT64_MAX : UINT64_MAX / rows * n;
}

uint64_t RankOf(const RowUse& use, uint32_t step, const EvictionPolicy& policy) {
  const uint64_t count = DecayedCount(use, step, policy.half_life);
  const uint64_t last = std::min(use.step, step);  // a loaded row may have a later one
  return policy.order == EvictionPolicy::Order::kLeastRecent ? last << 32 | count
                                                             : count << 32 | last;
}

}  // namespace

Status RowMutation::ChooseEvicted(RowPlan& plan) {
  const EvictionPolicy* const policy = EvictionOf(plan);
  if (policy == nullptr || !step_.has_value() || !plan.update.has_value()) return Status();
  TableFiles& files = *group_.files(plan.table);
  const TableState& state = StateOf(plan);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
  const TableMemory& memory = writer_.memory[static_cast<size_t>(plan.table)];
  const RecordStore* const store = plan.moves.store;
  const uint32_t now = UseStep(*step_);
  // Rows on disk are chosen by what the index of records has in memory.
  const uint64_t live = state.live + (store == nullptr ? 0 : store->rows());
  const uint64_t n_new = plan.fresh.size() - plan.moves.n_fetched();
  const uint64_t rows = live + n_new - plan.n_erased();
  const uint64_t excess = policy->max_rows > 0 ? rows - std::min(rows, policy->max_rows) : 0;
  if (excess > 0 && plan.existing.size() + plan.fresh.size() > policy->max_rows) {
    return TooFewToEvict(plan, *policy);
  }
  // A table exceeds its bound if the bound was lowered. It then gets smaller step by step.
  const uint64_t wanted = std::min(excess, n_new + EvictionPolicy::kRowsPerStep);
  const auto check = [&](uint32_t number) {
    return writer_.CheckSegmentOnce(files, plan.table, number, Checked::kEntries);
  };
  const std::unordered_set<uint32_t> erased(plan.erased_rows.begin(), plan.erased_rows.end());
  const auto may_go = [&](const Entry& entry) {
    const uint32_t row = entry.row_plus_one - 1;
    if (memory.marks.Has(row) && !TSPS_FAULT_OFF("evict.touched")) return false;
    return (policy->keep.empty() || policy->keep.count(entry.key) == 0) &&
           (erased.empty() || erased.count(row) == 0);
  };
  std::vector<Candidate> candidates, victims;
  std::vector<uint32_t> fetched;  // the places of rows on disk that the step changes
  for (const uint32_t place : plan.moves.places) {
    if (place != kNoRecord) fetched.push_back(place);
  }
  std::sort(fetched.begin(), fetched.end());
  const auto add_record = [&](uint64_t hash, uint32_t place, const RecordUse& use) {
    if (std::binary_search(fetched.begin(), fetched.end(), place) &&
        !TSPS_FAULT_OFF("evict.touched")) {
      return;
    }
    if (!policy->keep.empty() && policy->keep.count(use.key) != 0) return;
    candidates.push_back({hash, {}, place, use, 0});
  };
  // Few rows that may be evicted are found if the step changes most of the table.
  for (uint64_t n = std::max(EvictionPolicy::kRowsPerStep, EvictionPolicy::kRowsPerExcess * wanted);
       ; n *= 4) {
    candidates.clear();
    victims.clear();
    const uint64_t begin = *step_ * kStride, span = SpanOf(n, live);
    TSPS_RETURN_IF_ERROR(ForEachKey(
        files, state, begin, span, check, [&](uint64_t hash, uint32_t number, uint32_t i) {
          const Entry& entry = files.segment(number)->entries[i];
          if (!may_go(entry)) return;
          candidates.push_back({hash, {number, i, entry.row_plus_one}, kNoRecord, {}, 0});
        }));
    if (store != nullptr) TSPS_RETURN_IF_ERROR(store->ForEachUse(begin, span, add_record));
    const RowUse* const uses = list->uses();
    size_t kept = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      PrefetchAhead(i, candidates.size(), [&](size_t next) {
        if (candidates[next].place == kNoRecord) PrefetchLine(&uses[candidates[next].row()]);
      });
      RowUse use;
      if (candidates[i].place == kNoRecord) {
        use = uses[candidates[i].row()];
      } else {
        std::memcpy(&use, &candidates[i].on_disk.use, sizeof(use));
      }
      const bool unused = policy->unused_steps > 0 && now >= use.step + policy->unused_steps;
      candidates[i].rank = RankOf(use, now, *policy);
      (unused ? victims.emplace_back() : candidates[kept++]) = candidates[i];
    }
    candidates.resize(kept);
    if (victims.size() + candidates.size() >= wanted || n >= live) break;
  }
  plan.n_unused = victims.size();
  plan.n_excess = wanted - std::min<uint64_t>(wanted, victims.size());
  if (plan.n_excess > candidates.size()) {
    if (live <= policy->max_rows) return TooFewToEvict(plan, *policy);
    plan.n_excess = candidates.size();
  }
  const auto end = candidates.begin() + static_cast<ptrdiff_t>(plan.n_excess);
  const bool by_row = TSPS_FAULT_OFF("evict.order");
  std::nth_element(candidates.begin(), end, candidates.end(), [=](const auto& a, const auto& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    return by_row ? a.row() < b.row() : a.hash < b.hash;
  });
  victims.insert(victims.end(), candidates.begin(), end);
  // The order decides which row numbers are used again, and the order of the log of erased keys.
  std::sort(victims.begin(), victims.end(),
            [](const auto& a, const auto& b) { return a.hash < b.hash; });
  for (const Candidate& victim : victims) {
    if (victim.place != kNoRecord) {
      plan.erase_keys.push_back(victim.on_disk.key);
      plan.moves.erased.push_back(victim.on_disk.key);
      plan.moves.erased_places.push_back(victim.place);
      continue;
    }
    const int64_t key = files.segment(victim.entry.segment)->entries[victim.entry.entry].key;
    TSPS_RETURN_IF_ERROR(CheckKeyOfRow(files, *list, key, victim.row()));
    plan.erase_keys.push_back(key);
    plan.erased.push_back(victim.entry);
    plan.erased_rows.push_back(victim.row());
  }
  return Status();
}

Status RowMutation::TooFewToEvict(const RowPlan& plan, const EvictionPolicy& policy) const {
  return Error(Code::kResourceExhausted, "table ", group_.files(plan.table)->config().name,
               ": step ", *step_, " has ", plan.n, " keys, and eviction keeps ", policy.keep.size(),
               " keys and at most ", policy.max_rows,
               " rows on this node. Raise max_rows, or use smaller batches. Nothing was changed");
}

}  // namespace tsps
