#include "core/group/evictions.h"

#include <algorithm>

#include "core/table/index.h"

namespace tsps {
namespace {

constexpr float kDecay = 0.99932334f;  // 2^(-1/1024)
// Candidates at once, as a multiple of the rows that are wanted: finding them looks at all rows.
constexpr size_t kAhead = 16;
constexpr size_t kLeastCandidates = 4096;

}  // namespace

void Evictions::NextStep() { counts_.Decay(kDecay); }

void Evictions::Taken(const std::vector<uint32_t>& rows) {
  for (const uint32_t row : rows) counts_.Forget(row);
  counts_.Count(rows.data(), rows.size());
}

bool Evictions::MayGo(uint32_t row, const PlaneList& planes) const {
  return !kept_[row] && LoadRelaxed(planes.changed_generations()[row]) != kFreeRow;
}

void Evictions::Refill(size_t n, const PlaneList& planes) {
  std::vector<uint32_t> rows;
  counts_.Lowest(n, [&](uint32_t row) { return MayGo(row, planes); }, &rows);
  candidates_.clear();
  for (const uint32_t row : rows) candidates_.push_back({row, counts_.Of(row)});
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.count > b.count; });
}

void Evictions::Take(size_t n, const PlaneList& planes, std::vector<uint32_t>* rows) {
  while (rows->size() < n && !candidates_.empty()) {
    const Candidate one = candidates_.back();
    candidates_.pop_back();
    if (MayGo(one.row, planes) && counts_.Of(one.row) <= one.count) rows->push_back(one.row);
  }
}

std::vector<uint32_t> Evictions::Choose(size_t n, const PlaneList& planes,
                                        const std::vector<uint32_t>& kept) {
  kept_.resize(counts_.rows());
  for (const uint32_t row : kept) kept_[row] = true;
  std::vector<uint32_t> rows;
  Take(n, planes, &rows);
  if (rows.size() < n) {
    // All anew: those that were taken from the old ones would come twice.
    rows.clear();
    Refill(std::max(n * kAhead, kLeastCandidates), planes);
    Take(n, planes, &rows);
  }
  for (const uint32_t row : kept) kept_[row] = false;
  return rows;
}

}  // namespace tsps
