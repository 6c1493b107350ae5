// RowRecords: rows of a table as bytes, to be kept elsewhere: what a row has in all planes but its
// key, in the order of the table's list, without gaps.
#ifndef TFSPS_CORE_GROUP_ROW_RECORDS_H_
#define TFSPS_CORE_GROUP_ROW_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/table/planes.h"

namespace tsps {

class RowRecords {
 public:
  // The list must stay.
  explicit RowRecords(const PlaneList& list) : list_(list) {
    ForEach([this](const Plane& plane, size_t at) {
      if (plane.role == PlaneRole::kChanged) changed_at_ = at;
      bytes_ = at + plane.row_bytes;
    });
  }

  size_t bytes() const { return bytes_; }
  int64_t KeyOf(uint32_t row) const { return list_.keys()[row]; }

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
  uint32_t ChangedOf(const char* record) const {
    uint32_t changed;
    std::memcpy(&changed, record + changed_at_, sizeof(changed));
    return changed;
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
  size_t changed_at_ = 0;  // where the change generation is; every table has one
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_RECORDS_H_
