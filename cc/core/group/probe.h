#ifndef TFSPS_CORE_GROUP_PROBE_H_
#define TFSPS_CORE_GROUP_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "core/base/prefetch.h"
#include "core/base/status.h"
#include "core/table/index.h"
#include "core/table/table_files.h"

namespace tsps {

// Finds the row numbers of keys by batched probes; kAbsentRow for absent keys. `files` must be long
// enough for `state` (TableFiles::CheckIndexFiles). The writer uses it, too: there is no overlay
// and no validation. Returns the position of a key that the index leads outside of the table's
// segments or rows, or -1. Such a key means damage, unless a mutation came between.
//
// `fetch`: a plane whose rows are also prefetched, for a caller that reads few rows next; or null.
int64_t ProbeRows(const TableFiles& files, const TableState& state, const int64_t* keys, size_t n,
                  uint32_t* rows, const Plane* fetch = nullptr);
// Prefetches the entry of a key that will be looked up or added. The index must be as the commit
// record says, which only the writer knows.
inline void PrefetchEntry(const TableFiles& files, const TableState& state, int64_t key) {
  const uint64_t hash = HashKey(key, state.index_seed);
  const uint32_t number = files.directory_entries()[DirectoryPosition(hash, state.depth)];
  PrefetchLine(&files.segment(number)->entries[HomeEntry(hash)]);
}
// Returns DataLoss, naming such a key.
Status Astray(const TableFiles& files, int64_t key);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_PROBE_H_
