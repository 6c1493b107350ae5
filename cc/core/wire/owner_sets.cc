#include "core/wire/owner_sets.h"

#include "core/base/key_owner.h"

namespace tsps {

OwnerSets::OwnerSets(const std::vector<WireSet>& sets, uint32_t nodes, Executor& executor)
    : tables_(sets.size()) {
  std::vector<size_t> sizes;
  for (const WireSet& set : sets) sizes.push_back(set.n);
  ForEachItem(sizes, executor, [&](size_t t) {
    const WireSet& set = sets[t];
    Table& table = tables_[t];
    table.rows = set.rows;
    table.dim = set.dim;
    table.starts.assign(nodes + 1, 0);
    std::vector<uint32_t> owners(set.n);
    for (size_t i = 0; i < set.n; ++i) {
      owners[i] = OwnerOf(set.keys[i], nodes);
      ++table.starts[owners[i] + 1];
    }
    for (uint32_t owner = 0; owner < nodes; ++owner) {
      table.starts[owner + 1] += table.starts[owner];
    }
    table.keys.resize(set.n);
    table.places.resize(set.n);
    if (set.counts != nullptr) table.counts.resize(set.n);
    std::vector<size_t> next(table.starts.begin(), table.starts.end() - 1);
    for (size_t i = 0; i < set.n; ++i) {
      const size_t at = next[owners[i]]++;
      table.keys[at] = set.keys[i];
      table.places[at] = static_cast<uint32_t>(i);
      if (set.counts != nullptr) table.counts[at] = set.counts[i];
    }
  });
}

std::vector<WireSet> OwnerSets::Of(uint32_t owner) const {
  std::vector<WireSet> sets;
  for (const Table& table : tables_) {
    const size_t begin = table.starts[owner], n = table.starts[owner + 1] - begin;
    sets.push_back({table.keys.data() + begin,
                    table.counts.empty() ? nullptr : table.counts.data() + begin, table.rows, n,
                    table.dim, table.places.data() + begin});
  }
  return sets;
}

}  // namespace tsps
