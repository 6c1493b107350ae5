// RowRecords: converts rows of a table to records, for storage elsewhere, and back. A record has
// the row's bytes in all planes except the key, in the order of the table's list, without gaps.
#ifndef TFSPS_CORE_TABLE_ROW_RECORDS_H_
#define TFSPS_CORE_TABLE_ROW_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "core/base/prefetch.h"
#include "core/table/planes.h"

namespace tsps {

class RowRecords {
 public:
  // The list must outlive this.
  explicit RowRecords(const PlaneList& list) : list_(list) {
    ForEach([this](const Plane& plane, size_t at) { bytes_ = at + plane.row_bytes; });
  }

  size_t bytes() const { return bytes_; }
  // Returns where a record has the use of its row, if it has one.
  std::optional<size_t> UseOffset() const {
    std::optional<size_t> offset;
    ForEach([&](const Plane& plane, size_t at) {
      if (plane.role == PlaneRole::kUse) offset = at;
    });
    return offset;
  }
  int64_t KeyOf(uint32_t row) const { return list_.keys()[row]; }

  // Prefetches a row before Copy or Put.
  void Prefetch(uint32_t row) const {
    PrefetchLine(&list_.keys()[row]);
    ForEach([&](const Plane& plane, size_t) { tsps::Prefetch(plane.row(row), plane.row_bytes); });
  }
  // Copies a row into `record`. Only the writer may call it, outside of mutations.
  void Copy(uint32_t row, char* record) const {
    ForEach([&](const Plane& plane, size_t at) {
      std::memcpy(record + at, plane.row(row), plane.row_bytes);
    });
  }
  // Writes a record to a row, except its change generation. The change generation must still mark
  // the row as free, so that nobody reads it.
  void Put(const char* record, uint32_t row) const {
    ForEach([&](const Plane& plane, size_t at) {
      if (plane.role == PlaneRole::kChanged) return;
      std::memcpy(plane.row(row), record + at, plane.row_bytes);
    });
  }
  // Copies the record to row i of the wanted planes: planes[p] is the array of the list's plane p,
  // or null if it is not wanted.
  void Split(const char* record, size_t i, char* const* planes) const {
    ForEach([&](const Plane& plane, size_t at) {
      char* const array = planes[&plane - list_.planes.data()];
      if (array != nullptr) std::memcpy(array + i * plane.row_bytes, record + at, plane.row_bytes);
    });
  }

 private:
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    size_t at = 0;
    for (const Plane& plane : list_.planes) {
      if (plane.role == PlaneRole::kKey) continue;
      visit(plane, at);
      at += plane.row_bytes;
    }
  }

  const PlaneList& list_;
  size_t bytes_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_RECORDS_H_
