// What changed since a change generation.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/racy_copy.h"
#include "core/group/group_impl.h"
#include "core/group/scan.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

constexpr size_t kChunk = 4096;  // rows

}  // namespace

Result<Changes> Scan::ChangedSince(int table, uint32_t generation) {
  Changes changes;
  const Part& part = PartOf(table);
  const TableState& state = StateOf(table);
  changes.everything = generation < state.complete_since || generation > state_.changes;
  if (!changes.everything) {
    std::vector<ErasedKey> erased(state.erased);
    RacyRead(erased.data(), part.files->erased_keys(), erased.size() * sizeof(ErasedKey));
    // A log that was emptied meanwhile may have been overwritten.
    State now;
    group_.impl_->control->LoadLastState(&now);
    const size_t place = PlaceOf(table);
    changes.everything = place >= now.tables.size() ||
                         now.tables[place].removed != RemovedBefore(table) ||
                         now.tables[place].complete_since != state.complete_since;
    for (const ErasedKey& entry : erased) {
      if (entry.generation >= generation) changes.erased.push_back(entry.key);
    }
  }
  if (changes.everything) changes.erased.clear();
  std::sort(changes.erased.begin(), changes.erased.end());
  changes.erased.erase(std::unique(changes.erased.begin(), changes.erased.end()),
                       changes.erased.end());
  std::vector<int64_t> keys(kChunk);
  std::vector<uint32_t> generations(kChunk);
  char* planes[kMaxPlanes] = {};
  planes[part.list->trained() + 1] = reinterpret_cast<char*>(generations.data());
  while (true) {
    TSPS_ASSIGN_OR_RETURN(const size_t n, Next(table, kChunk, keys.data(), planes));
    if (n == 0) return changes;
    for (size_t i = 0; i < n; ++i) {
      if (changes.everything || generations[i] >= generation) changes.written.push_back(keys[i]);
    }
  }
}

}  // namespace tsps
