#include "core/gradients/occurrences.h"

#include <algorithm>
#include <utility>

#include "core/gradients/dedupe.h"
#include "core/gradients/key_count.h"

namespace tsps {

bool Occurrences::Add(const int64_t* keys, size_t n, const std::vector<Ids>& ids) {
  Lookup lookup;
  lookup.occurrences.resize(n);
  for (const Ids& feature : ids) {
    for (size_t i = 0; i < feature.n; ++i) {
      const auto position = static_cast<uint32_t>(feature.positions[i]);
      if (position >= n) return false;
      ++lookup.occurrences[position];
    }
  }
  lookup.keys.assign(keys, keys + n);
  const std::lock_guard<std::mutex> lock(mutex_);
  lookups_.push_back(std::move(lookup));
  if (lookups_.size() >= kMostLookups) {
    Lookup joined = Join(lookups_);
    lookups_.clear();
    if (joined.keys.size() <= kMostKeys) lookups_.push_back(std::move(joined));
  }
  return true;
}

void Occurrences::Take(const int64_t* keys, size_t n, int32_t* counts) {
  std::vector<Lookup> lookups;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lookups.swap(lookups_);
  }
  const auto is_of_step = [&](const Lookup& lookup) {
    return lookup.keys.size() == n && std::equal(lookup.keys.begin(), lookup.keys.end(), keys);
  };
  if (lookups.size() == 1 && is_of_step(lookups.front())) {
    for (size_t i = 0; i < n; ++i) {
      counts[i] = CountOfOneRank(std::max(1u, lookups.front().occurrences[i]));
    }
    return;
  }
  // First in the list, so that the joined keys begin with them.
  lookups.insert(lookups.begin(), {{keys, keys + n}, std::vector<uint32_t>(n)});
  const Lookup joined = Join(lookups);
  for (size_t i = 0; i < n; ++i) {
    counts[i] = CountOfOneRank(std::max(1u, joined.occurrences[i]));
  }
}

Occurrences::Lookup Occurrences::Join(const std::vector<Lookup>& lookups) {
  size_t n = 0;
  for (const Lookup& lookup : lookups) n += lookup.keys.size();
  std::vector<int32_t> positions(n);
  std::vector<IdSpan> spans;
  int32_t* at = positions.data();
  for (const Lookup& lookup : lookups) {
    spans.push_back({lookup.keys.data(), lookup.keys.size(), at});
    at += lookup.keys.size();
  }
  Lookup joined;
  joined.keys = Dedupe(spans);
  joined.occurrences.resize(joined.keys.size());
  for (size_t l = 0; l < lookups.size(); ++l) {
    for (size_t i = 0; i < lookups[l].keys.size(); ++i) {
      joined.occurrences[static_cast<size_t>(spans[l].inverse[i])] += lookups[l].occurrences[i];
    }
  }
  return joined;
}

}  // namespace tsps
