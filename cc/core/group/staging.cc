// Rows on disk are read ahead of their need.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/group/group_impl.h"
#include "core/group/table_number.h"

namespace tsps {

Status Group::Stage(int table, const int64_t* keys, size_t n) {
  constexpr size_t kKeys = 16384;  // are looked up at once, between two mutations
  TSPS_ASSIGN_OR_RETURN(const auto config, Config(table));
  if (!config->storage.tiered()) return Status();
  std::vector<int64_t> absent;
  std::vector<uint32_t> rows(std::min(n, kKeys));
  TableState state = {};
  for (size_t begin = 0; begin < n; begin += kKeys) {
    const size_t m = std::min(kKeys, n - begin);
    TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) {
      view.FindRows(table, keys + begin, m, rows.data());
      if (view.Has(table)) state = view.StateOf(table);
      return Status();
    }));
    for (size_t i = 0; i < m; ++i) {
      if (rows[i] == kAbsentRow) absent.push_back(keys[begin + i]);
    }
  }
  const std::shared_ptr<const MappedTables::List> mapped = impl_->tables.list();
  const size_t place = PlaceOf(table);
  if (place >= mapped->size() || !(*mapped)[place].Is(RemovedBefore(table))) return Status();
  TSPS_ASSIGN_OR_RETURN(RecordStore* const records, (*mapped)[place].files->Records(state));
  return records->Stage(absent.data(), absent.size());
}

}  // namespace tsps
