// Scans that begin while a mutation is sealed. Its writer has not seen the scan, and has made no
// images for it. But the undo log has the previous contents of the rows, and neither the log nor
// the rows change until others decide.
#include <cstring>
#include <utility>

#include "core/base/racy_copy.h"
#include "core/group/group_impl.h"
#include "core/group/index_view.h"
#include "core/group/scan.h"
#include "core/group/table_number.h"

namespace tsps {

Result<bool> Scan::TakeSealed() {
  Group::Impl& impl = *group_.impl_;
  // Undoing a mutation begins with removing its seal.
  const auto stands = [&] {
    return impl.control->Validate(sealed_) && impl.control->IsSealed(sealed_) &&
           file().header().seen.load() == 0;
  };
  Status taken;
  const auto overlay = impl.OverlayFor(sealed_, state_);
  if (overlay.ok()) {
    for (Part& part : parts_) {
      if (taken.ok()) taken = TakeSealed(**overlay, part);
    }
  }
  if (!stands()) return false;
  TSPS_RETURN_IF_ERROR(overlay.status());
  TSPS_RETURN_IF_ERROR(taken);
  return true;
}

Status Scan::TakeSealed(const Overlay& overlay, Part& part) {
  const auto place = static_cast<int>(PlaceOf(part.table));
  const TableState& state = StateOf(part.table);
  const PlaneList& list = *part.list;
  TSPS_RETURN_IF_ERROR(overlay.CheckPlanes(place, list));
  const size_t bytes = RowBytesOf(list, part.wanted);
  std::vector<char>& images = sealed_images_.emplace_back(overlay.n_changes(place) * bytes);
  char* next = images.data();
  const auto add = [&](uint32_t row) -> char* {
    if (row >= state.rows || !part.images.emplace(row, next).second) return nullptr;
    char* const image = std::exchange(next, next + bytes);
    for (size_t p = 0; p < list.planes.size(); ++p) {
      const Plane& plane = list.planes[p];
      if ((part.wanted >> p & 1) == 0) continue;
      const char* const before = overlay.RowImage(place, p, row, list);
      RacyRead(image + OffsetOf(part, p), before != nullptr ? before : plane.row(row),
               plane.row_bytes);
    }
    file().SetSaved(NumberOf(part), row);  // the writer makes no second image of it
    return image;
  };
  const auto add_changed = [&](uint32_t row, uint32_t changed) {
    char* const image = add(row);
    if (image != nullptr) {
      std::memcpy(image + OffsetOf(part, list.trained() + 1), &changed, sizeof(changed));
    }
  };
  overlay.ForEachRow(place, [&](uint32_t row) { add(row); });
  // The generations in which these rows were written are lost; the group's current one takes their
  // place.
  overlay.ForEachErased(place, [&](uint32_t row) { add_changed(row, state_.changes); });
  // A new key may have the row of a key that was erased earlier.
  const IndexView now(*part.files, state, nullptr, place);
  overlay.ForEachInserted(place, [&](int64_t key) {
    const uint64_t hash = HashKey(key, state.index_seed);
    const uint32_t segment = now.SegmentOf(hash);
    if (segment >= state.segments) return;
    const uint32_t at = now.Find(segment, key, hash);
    if (at < kSegmentEntries) add_changed(now.RowPlusOne(segment, at) - 1, kFreeRow);
  });
  if (part.records == nullptr) return Status();
  part.records->LeftDeclared(state.moves + 1);
  return Status();
}

}  // namespace tsps
