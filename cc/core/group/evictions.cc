#include "core/group/evictions.h"

#include <algorithm>

#include "core/base/prefetch.h"
#include "core/table/index.h"

namespace tsps {
namespace {

constexpr float kDecay = 0.99932334f;  // 2^(-1/1024)
// How many candidates are searched at once, relative to the wanted rows and to all rows. A search
// reads the counts of all rows.
constexpr size_t kCandidatesPerRow = 16;
constexpr size_t kLeastCandidates = 4096;
constexpr size_t kShare = 16;
constexpr size_t kPrefetched = 16;  // candidates ahead of the current one

}  // namespace

void Evictions::NextStep() { counts_.Decay(kDecay); }

void Evictions::Taken(const std::vector<uint32_t>& rows) {
  for (const uint32_t row : rows) counts_.Forget(row);
  counts_.Count(rows.data(), rows.size());
}

bool Evictions::MayLeave(uint32_t row, const Rows& rows) const {
  return !kept_[row] && LoadRelaxed(rows.planes.changed_generations()[row]) != kFreeRow &&
         (rows.announced == nullptr || !rows.announced->IsNeeded(row, rows.step));
}

void Evictions::Refill(size_t n, const Rows& rows) {
  std::vector<uint32_t> lowest;
  counts_.Lowest(n, [&](uint32_t row) { return MayLeave(row, rows); }, &lowest);
  candidates_.clear();
  for (const uint32_t row : lowest) candidates_.push_back({row, counts_.Of(row)});
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.count > b.count; });
}

void Evictions::Take(size_t n, const Rows& rows, std::vector<uint32_t>* taken) {
  while (taken->size() < n && !candidates_.empty()) {
    const Candidate candidate = candidates_.back();
    candidates_.pop_back();
    if (candidates_.size() > kPrefetched) {
      const uint32_t next = candidates_[candidates_.size() - kPrefetched].row;
      PrefetchLine(&rows.planes.changed_generations()[next]);
      counts_.Prefetch(next);
      if (rows.announced != nullptr) rows.announced->Prefetch(next);
    }
    if (MayLeave(candidate.row, rows) && counts_.Of(candidate.row) <= candidate.count)
      taken->push_back(candidate.row);
  }
}

std::vector<uint32_t> Evictions::Choose(size_t n, Rows rows, const std::vector<uint32_t>& kept) {
  kept_.resize(counts_.rows());
  for (const uint32_t row : kept) kept_[row] = true;
  std::vector<uint32_t> taken;
  Take(n, rows, &taken);
  const size_t candidates =
      std::max({n * kCandidatesPerRow, kLeastCandidates, counts_.rows() / kShare});
  while (taken.size() < n) {
    // Starts over: the new candidates may include rows that were already taken.
    taken.clear();
    Refill(candidates, rows);
    Take(n, rows, &taken);
    if (rows.announced == nullptr) break;
    rows.announced = nullptr;
  }
  for (const uint32_t row : kept) kept_[row] = false;
  return taken;
}

}  // namespace tsps
