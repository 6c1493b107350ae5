#include "core/group/row_plan.h"

#include "core/gradients/merge.h"

namespace tsps {

GradientRows::GradientRows(const TableUpdate& update, size_t dim)
    : dim_(dim), pieces_(update.pieces) {
  if (pieces_.empty()) pieces_.push_back({update.gradients, update.n});
  size_t end = 0;
  for (const TableUpdate::Piece& piece : pieces_) ends_.push_back(end += piece.n);
}

const float* GradientRows::at(size_t i) const {
  if (i < ends_[0]) return pieces_[0].rows + i * dim_;
  const size_t p =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
  return pieces_[p].rows + (i - ends_[p - 1]) * dim_;
}

int64_t GradientRows::FirstNonFinite(Executor& executor) const {
  size_t before = 0;
  for (const TableUpdate::Piece& piece : pieces_) {
    const int64_t row = FirstNonFiniteRow(piece.rows, piece.n, dim_, executor);
    if (row >= 0) return static_cast<int64_t>(before) + row;
    before += piece.n;
  }
  return -1;
}

RowPlanes::RowPlanes(const PlaneList& planes, size_t n_planes, uint32_t generation)
    : list(planes),
      n(static_cast<int>(n_planes)),
      keys(planes.keys()),
      changed(planes.changed_generations()),
      changes(generation) {
  for (int p = 0; p < n; ++p) {
    base[p] = list.planes[static_cast<size_t>(p)].file->data();
    bytes[p] = list.planes[static_cast<size_t>(p)].row_bytes;
  }
}

}  // namespace tsps
