#include "core/group/probe.h"

#include <algorithm>

#include "core/base/prefetch.h"
#include "core/table/index.h"

namespace tsps {
namespace {

// The number of keys in flight: enough misses to keep the memory system busy, few enough to stay in
// L1.
constexpr size_t kBatch = 16;

}  // namespace

int64_t ProbeRows(const TableFiles& files, const TableState& state, const int64_t* keys, size_t n,
                  uint32_t* rows, const Plane* fetch) {
  const uint32_t depth = std::min(state.depth, kMaxDepth);
  const uint64_t seed = state.index_seed;
  const uint32_t* const directory = files.directory_entries();
  int64_t astray = -1;
  uint64_t hashes[kBatch];
  const Segment* segments[kBatch];
  for (size_t begin = 0; begin < n; begin += kBatch) {
    const size_t m = std::min(kBatch, n - begin);
    for (size_t i = 0; i < m; ++i) {
      hashes[i] = HashKey(keys[begin + i], seed);
      const uint32_t number = LoadRelaxed(directory[DirectoryPosition(hashes[i], depth)]);
      segments[i] = nullptr;
      if (number >= state.segments) {
        astray = static_cast<int64_t>(begin + i);
        continue;
      }
      segments[i] = files.segment(number);
      Prefetch(&segments[i]->entries[HomeEntry(hashes[i])], sizeof(Entry));
    }
    for (size_t i = 0; i < m; ++i) {
      rows[begin + i] = kAbsentRow;
      if (segments[i] == nullptr) continue;
      const Entry* const entry = FindInSegment(*segments[i], keys[begin + i], hashes[i]);
      if (entry == nullptr) continue;
      const uint32_t row = LoadRelaxed(entry->row_plus_one) - 1;
      if (row >= state.rows) {
        astray = static_cast<int64_t>(begin + i);
        continue;
      }
      if (fetch != nullptr) Prefetch(fetch->row(row), std::min<size_t>(fetch->row_bytes, 256));
      rows[begin + i] = row;
    }
  }
  return astray;
}

Status Astray(const TableFiles& files, int64_t key) {
  return Error(Code::kDataLoss, "table ", files.folder(), " is damaged: its index leads key ", key,
               " to a segment or a row that the table does not have");
}

}  // namespace tsps
