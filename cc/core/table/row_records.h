// RowRecords: rows of a table as bytes, to be kept elsewhere: what a row has in all planes but its
// key, in the order of the table's list, without gaps.
#ifndef TFSPS_CORE_TABLE_ROW_RECORDS_H_
#define TFSPS_CORE_TABLE_ROW_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/prefetch.h"
#include "core/table/planes.h"

namespace tsps {

class RowRecords {
 public:
  // The list must stay.
  explicit RowRecords(const PlaneList& list) : list_(list) {
    ForEach([this](const Plane& plane, size_t at) { bytes_ = at + plane.row_bytes; });
  }

  size_t bytes() const { return bytes_; }
  int64_t KeyOf(uint32_t row) const { return list_.keys()[row]; }

  // The row will be copied, or put.
  void Prefetch(uint32_t row) const {
    __builtin_prefetch(&list_.keys()[row]);
    ForEach([&](const Plane& plane, size_t) { tsps::Prefetch(plane.row(row), plane.row_bytes); });
  }
  // The writer's, outside of mutations.
  void Copy(uint32_t row, char* record) const {
    ForEach([&](const Plane& plane, size_t at) {
      std::memcpy(record + at, plane.row(row), plane.row_bytes);
    });
  }
  // Of a row that nobody can see yet, but for its change generation, which says so.
  void Put(const char* record, uint32_t row) const {
    ForEach([&](const Plane& plane, size_t at) {
      if (plane.role == PlaneRole::kChanged) return;
      std::memcpy(plane.row(row), record + at, plane.row_bytes);
    });
  }
  // What the record has in the planes that are wanted, as row i of each: planes[p] is that of the
  // list's plane p, or null.
  void Split(const char* record, size_t i, char* const* planes) const {
    ForEach([&](const Plane& plane, size_t at) {
      char* const to = planes[&plane - list_.planes.data()];
      if (to != nullptr) std::memcpy(to + i * plane.row_bytes, record + at, plane.row_bytes);
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
