#ifndef TFSPS_CORE_GROUP_PROBE_H_
#define TFSPS_CORE_GROUP_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "core/base/status.h"
#include "core/table/index.h"
#include "core/table/table_files.h"

namespace tsps {

// Row numbers of keys, kAbsentRow for absent ones, by batched probes. Also the writer's way in: no
// overlay, no validation. Returns the position of a key that the index leads astray, out of the
// table's segments or rows: damage, unless a writer came between; or -1. The files are those of
// `state` (TableFiles::CheckFiles).
// `fetch`: into the caches, too, for whoever reads the rows next, if they are few.
int64_t ProbeRows(const TableFiles& files, const TableState& state, const int64_t* keys, size_t n,
                  uint32_t* rows, bool fetch = false);
// The key will be looked for, or added, in an index that is as a commit record says: an own one.
inline void PrefetchEntry(const TableFiles& files, const TableState& state, int64_t key) {
  const uint64_t hash = HashKey(key, state.index_seed);
  const uint32_t number = files.directory_entries()[DirectoryPosition(hash, state.depth)];
  __builtin_prefetch(&files.segment(number)->entries[HomeEntry(hash)]);
}
// DataLoss, naming such a key.
Status Astray(const TableFiles& files, int64_t key);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_PROBE_H_
