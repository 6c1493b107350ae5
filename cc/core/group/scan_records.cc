// Scans of rows on disk.
#include <cstring>

#include "core/group/scan.h"
#include "core/table/row_records.h"

namespace tsps {

Result<bool> Scan::BeginRecords(Part& part) {
  const TableState& state = StateOf(part.table);
  TSPS_ASSIGN_OR_RETURN(RecordStore* const store, part.files->Records(state));
  if (store == nullptr) return true;
  const auto refresh = [this]() -> Status {
    if (!announced()) return ReadInPlace([](const ReadView&) { return Status(); });
    TSPS_RETURN_IF_ERROR(Check());
    return TakeImages();
  };
  TSPS_ASSIGN_OR_RETURN(part.records, RecordScan::Begin(*store, state.moves, refresh));
  return part.records != nullptr;
}

uint64_t Scan::RowsOf(int table) const {
  const Part& part = PartOf(table);
  return StateOf(table).live + (part.records == nullptr ? 0 : part.records->rows());
}

Status Scan::ReadRecords(int table, const int64_t* keys, size_t n,
                         const RecordStore::Visit& visit) {
  Part& part = PartOf(table);
  if (part.records == nullptr || n == 0) return Status();
  return part.records->Find(keys, n, visit);
}

Result<size_t> Scan::NextOnDisk(int table, size_t n, int64_t* keys, char* const* planes) {
  Part& part = PartOf(table);
  if (part.records == nullptr) return size_t{0};
  const RowRecords records(*part.list);
  size_t done = 0;
  while (done < n) {
    if (part.payload == part.payload_keys.size()) {
      part.payload = 0;
      part.payloads.clear();
      part.payload_keys.clear();
      TSPS_ASSIGN_OR_RETURN(
          const bool more, part.records->Next([&](int64_t key, const char* payload) {
            part.payload_keys.push_back(key);
            part.payloads.insert(part.payloads.end(), payload, payload + records.bytes());
          }));
      if (!more) return done;
      continue;
    }
    keys[done] = part.payload_keys[part.payload];
    const size_t key = part.list->trained();
    if (planes[key] != nullptr) {
      std::memcpy(planes[key] + done * sizeof(int64_t), &keys[done], sizeof(int64_t));
    }
    records.Split(part.payloads.data() + part.payload * records.bytes(), done, planes);
    ++part.payload;
    ++done;
  }
  return done;
}

}  // namespace tsps
