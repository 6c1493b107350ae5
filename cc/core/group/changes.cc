// What changed since a change generation.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/racy_copy.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

constexpr size_t kChunk = 4096;  // rows

}  // namespace

Changes ReadView::ChangedSince(int table, uint32_t generation) const {
  Changes changes;
  if (!Mapped(table)) return changes;
  TableFiles& files = Files(table);
  const TableState& state = StateOf(table);
  changes.everything = generation < state.complete_since || generation > state_.changes;
  if (changes.everything) {
    ForEach(table, [&](int64_t key, uint32_t) { changes.written.push_back(key); });
    return changes;
  }
  const PlaneList* const list = files.Planes(state);
  if (list == nullptr) return changes;  // Mapped has seen it: a writer came between
  const auto* const changed = reinterpret_cast<const uint32_t*>(list->changed().file->data());
  const auto* const keys = reinterpret_cast<const int64_t*>(list->key().file->data());
  uint32_t generations[kChunk];
  std::vector<uint32_t> rows;
  std::vector<int64_t> candidates;
  std::vector<uint32_t> found;
  for (uint64_t begin = 0; begin < state.rows; begin += kChunk) {
    const size_t n = std::min<uint64_t>(kChunk, state.rows - begin);
    RacyRead(generations, changed + begin, n * sizeof(uint32_t));
    rows.clear();
    candidates.clear();
    for (size_t i = 0; i < n; ++i) {
      if (generations[i] < generation) continue;
      int64_t key = 0;
      RacyRead(&key, keys + begin + i, sizeof(key));
      rows.push_back(static_cast<uint32_t>(begin + i));
      candidates.push_back(key);
    }
    found.resize(rows.size());
    FindRows(table, candidates.data(), candidates.size(), found.data());
    for (size_t i = 0; i < rows.size(); ++i) {  // others are free, or not committed
      if (found[i] == rows[i]) changes.written.push_back(candidates[i]);
    }
  }
  for (uint64_t i = 0; i < state.erased; ++i) {
    ErasedKey entry;
    RacyRead(&entry, files.erased_keys() + i, sizeof(entry));
    if (entry.generation >= generation) changes.erased.push_back(entry.key);
  }
  std::sort(changes.erased.begin(), changes.erased.end());
  changes.erased.erase(std::unique(changes.erased.begin(), changes.erased.end()),
                       changes.erased.end());
  return changes;
}

}  // namespace tsps
