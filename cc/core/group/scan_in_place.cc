// Scans that cannot announce themselves: they read with Group::Read() while nobody changes the
// group.
#include <cstring>

#include "core/base/racy_copy.h"
#include "core/group/control_file.h"
#include "core/group/scan.h"

namespace tsps {

Status Scan::ReadInPlace(const std::function<Status(const ReadView&)>& read) {
  return group_.Read(
      [&](const ReadView& view) -> Status {
        if (view.state_.epoch != state_.epoch) {
          return Error(Code::kUnavailable, "group ", group_.path(),
                       " changed while it was read, and the scan could not announce itself to the "
                       "writer (",
                       not_announced_, "). Begin the scan again");
        }
        return read(view);
      },
      options_.timeout_s);
}

Status Scan::CopyInPlace(int table, const uint32_t* rows, size_t n, char* const* planes) {
  const PlaneList& list = Planes(table);
  const size_t key = list.trained();
  return ReadInPlace([&](const ReadView& view) -> Status {
    if (!view.Mapped(table)) return Status();  // Read maps it, or fails
    for (size_t i = 0; i < n; ++i) {
      if (rows[i] == kAbsentRow) continue;
      for (size_t p = 0; p < list.planes.size(); ++p) {
        const size_t bytes = list.planes[p].row_bytes;
        if (planes[p] == nullptr) continue;
        const char* const from = view.Plane(table, p, rows[i]);
        if (from == nullptr) return Damaged(group_.path(), "no row ", rows[i]);
        RacyRead(planes[p] + i * bytes, from, bytes);
      }
      // The unfinished mutation may have changed whether the row is free.
      if (planes[key + 1] == nullptr || view.overlay_ == nullptr) continue;
      int64_t key_of_row = 0;
      uint32_t row_of_key = 0;
      uint32_t changed = 0;
      RacyRead(&key_of_row, list.keys() + rows[i], sizeof(key_of_row));
      view.FindRows(table, &key_of_row, 1, &row_of_key);
      std::memcpy(&changed, planes[key + 1] + i * sizeof(changed), sizeof(changed));
      if (row_of_key != rows[i]) changed = kFreeRow;
      if (row_of_key == rows[i] && changed == kFreeRow) changed = state_.changes;
      std::memcpy(planes[key + 1] + i * sizeof(changed), &changed, sizeof(changed));
    }
    return Status();
  });
}

}  // namespace tsps
