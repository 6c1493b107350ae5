// Staging: reads rows on disk ahead of their use.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/group/group_impl.h"
#include "core/group/table_number.h"

namespace tsps {
namespace {

// Returns the records of a table in a state; null if all rows are in memory or the table was
// removed.
Result<RecordStore*> RecordsOf(const MappedTables::List& mapped, int table,
                               const TableState& state) {
  const size_t place = PlaceOf(table);
  if (place >= mapped.size() || !mapped[place].Is(RemovedBefore(table))) return nullptr;
  return mapped[place].files->Records(state);
}

}  // namespace

Result<Group::Announced> Group::Announce(int table, const int64_t* keys, size_t n, uint64_t steps) {
  constexpr size_t kKeys = 16384;  // looked up in one read, between two mutations
  Announced announced;
  TSPS_ASSIGN_OR_RETURN(const auto config, Config(table));
  if (!config->storage.tiered()) return announced;
  std::vector<uint32_t> rows(std::min(n, kKeys));
  TableState state = {};
  for (size_t begin = 0; begin < n; begin += kKeys) {
    const size_t m = std::min(kKeys, n - begin);
    TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) {
      view.FindRows(table, keys + begin, m, rows.data());
      if (view.Has(table)) state = view.StateOf(table);
      announced.step = view.step();
      return Status();
    }));
    const std::shared_ptr<const MappedTables::List> mapped = impl_->tables.list();
    TSPS_ASSIGN_OR_RETURN(RecordStore* const records, RecordsOf(*mapped, table, state));
    if (records == nullptr) return announced;
    announced.room = records->cached_records();
    for (size_t i = 0; i < m; ++i) {
      if (rows[i] == kAbsentRow) {
        announced.absent.push_back(keys[begin + i]);
      } else {
        records->announced().Announce(rows[i], announced.step, steps);
      }
    }
  }
  return announced;
}

Status Group::Stage(int table, const int64_t* keys, size_t n, uint64_t steps) {
  TSPS_ASSIGN_OR_RETURN(const Announced announced, Announce(table, keys, n, steps));
  TableState state = {};
  TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) {
    if (view.Has(table)) state = view.StateOf(table);
    return Status();
  }));
  const std::shared_ptr<const MappedTables::List> mapped = impl_->tables.list();
  TSPS_ASSIGN_OR_RETURN(RecordStore* const records, RecordsOf(*mapped, table, state));
  if (records == nullptr) return Status();
  return records->Stage(announced.absent.data(), announced.absent.size());
}

}  // namespace tsps
