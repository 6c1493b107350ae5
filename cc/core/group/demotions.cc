#include "core/group/demotions.h"

#include <algorithm>

#include "core/base/prefetch.h"
#include "core/table/index.h"

namespace tsps {
namespace {

constexpr float kDecay = 0.99932334f;  // 2^(-1/1024)
// A slice has this many rows for each wanted one, and at least so many.
constexpr size_t kRowsPerWanted = 6;
constexpr size_t kLeastRows = 4096;
constexpr size_t kPrefetched = 16;  // candidates ahead of the current one

}  // namespace

void Demotions::NextStep() { counts_.Decay(kDecay); }

void Demotions::Taken(const std::vector<uint32_t>& rows) {
  for (const uint32_t row : rows) counts_.Forget(row);
  counts_.Count(rows.data(), rows.size());
}

bool Demotions::MayLeave(uint32_t row, const Rows& rows) const {
  return !kept_[row] && LoadRelaxed(rows.changed_generations[row]) != kFreeRow &&
         (rows.announced == nullptr || !rows.announced->IsNeeded(row, rows.step));
}

size_t Demotions::NextSlice(size_t n, size_t most, const Rows& rows) {
  const size_t slice = std::min(most, std::max(n * kRowsPerWanted, kLeastRows));
  candidates_.clear();
  for (size_t i = 0; i < slice; ++i) {
    const uint32_t row = hand_;
    hand_ = hand_ + 1 < counts_.rows() ? hand_ + 1 : 0;
    if (MayLeave(row, rows)) candidates_.push_back({row, counts_.Of(row)});
  }
  const auto by_count = [](const Candidate& a, const Candidate& b) { return a.count < b.count; };
  const size_t wanted = std::max(n, slice / kRowsPerWanted);
  if (wanted < candidates_.size()) {
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(wanted);
    std::nth_element(candidates_.begin(), end, candidates_.end(), by_count);
    candidates_.erase(end, candidates_.end());
  }
  std::sort(candidates_.rbegin(), candidates_.rend(), by_count);
  return slice;
}

void Demotions::Take(size_t n, const Rows& rows, std::vector<uint32_t>* taken) {
  while (taken->size() < n && !candidates_.empty()) {
    const Candidate candidate = candidates_.back();
    candidates_.pop_back();
    if (candidates_.size() > kPrefetched) {
      const uint32_t next = candidates_[candidates_.size() - kPrefetched].row;
      PrefetchLine(&rows.changed_generations[next]);
      counts_.Prefetch(next);
      if (rows.announced != nullptr) rows.announced->Prefetch(next);
    }
    if (!MayLeave(candidate.row, rows) || counts_.Of(candidate.row) > candidate.count) continue;
    taken->push_back(candidate.row);
    kept_[candidate.row] = true;  // it is not chosen twice
  }
}

std::vector<uint32_t> Demotions::Choose(size_t n, Rows rows, const std::vector<uint32_t>& kept) {
  kept_.resize(counts_.rows());
  for (const uint32_t row : kept) kept_[row] = true;
  std::vector<uint32_t> taken;
  Take(n, rows, &taken);
  for (size_t passed = 0; taken.size() < n;) {
    if (passed == counts_.rows()) {
      if (rows.announced == nullptr) break;
      rows.announced = nullptr;
      passed = 0;
    }
    passed += NextSlice(n, counts_.rows() - passed, rows);
    Take(n, rows, &taken);
  }
  for (const uint32_t row : taken) kept_[row] = false;
  for (const uint32_t row : kept) kept_[row] = false;
  return taken;
}

}  // namespace tsps
