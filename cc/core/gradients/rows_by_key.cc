#include "core/gradients/rows_by_key.h"

#include <algorithm>
#include <climits>

#include "core/base/prefetch.h"
#include "core/base/simd.h"

namespace tsps {
namespace {

// Rows ahead of the one being summed that are fetched from memory.
constexpr size_t kAhead = 12;
// Rows and keys per range: small enough that sums are still in cache when `done` reads them.
constexpr size_t kRange = 1024;

// Four rows per trip over `out`: one load and store of it instead of four, in the same order of
// additions.
TSPS_SIMD_CLONES
void AddPlain(const float* const* rows, size_t n, size_t dim, float* __restrict__ out) {
  size_t r = 0;
  for (; r + 4 <= n; r += 4) {
    const float *a = rows[r], *b = rows[r + 1], *c = rows[r + 2], *d = rows[r + 3];
    for (size_t i = 0; i < dim; ++i) out[i] = (((out[i] + a[i]) + b[i]) + c[i]) + d[i];
  }
  for (; r < n; ++r) {
    const float* a = rows[r];
    for (size_t i = 0; i < dim; ++i) out[i] += a[i];
  }
}

TSPS_SIMD_CLONES
void AddWeighted(const float* const* rows, const float* weights, size_t n, size_t dim,
                 float* __restrict__ out) {
  for (size_t r = 0; r < n; ++r) {
    const float* a = rows[r];
    const float weight = weights[r];
    for (size_t i = 0; i < dim; ++i) out[i] += weight * a[i];
  }
}

}  // namespace

void AddRows(const float* const* rows, const float* weights, size_t n, size_t dim, float* out) {
  if (weights == nullptr) {
    AddPlain(rows, n, dim, out);
  } else {
    AddWeighted(rows, weights, n, dim, out);
  }
}

Status RowsByKey::Count(const int32_t* inverse, size_t n) {
  const size_t n_keys = ends_.size() - 1;
  if (n > static_cast<size_t>(INT32_MAX) - n_) {
    return Error(Code::kInvalidArgument, "more than 2^31 - 1 rows in one segment sum");
  }
  for (size_t i = 0; i < n; ++i) {
    // Negative numbers become large ones.
    if (static_cast<uint32_t>(inverse[i]) >= n_keys) {
      return Error(Code::kInvalidArgument, "inverse[", i, "] must be in [0, ", n_keys,
                   "), the number of keys. Received: ", inverse[i]);
    }
    ++ends_[inverse[i] + 1];
  }
  n_ += n;
  return Status();
}

void RowsByKey::Allocate() {
  for (size_t k = 1; k < ends_.size(); ++k) ends_[k] += ends_[k - 1];
  rows_.reset(new const float*[n_]);
  if (weighted_) weights_.reset(new float[n_]);
}

void RowsByKey::Sum(size_t dim, float* sums, Executor& executor,
                    const std::function<void(size_t first_key, size_t last_key)>& done) const {
  const size_t n_keys = ends_.size() - 1;
  // Ranges of about equal work, cut where rows + keys passes a multiple of kRange.
  std::vector<uint32_t> cuts = {0};
  for (size_t k = 0; k < n_keys; ++k) {
    if (ends_[k] + k + 1 >= cuts.size() * kRange) cuts.push_back(static_cast<uint32_t>(k + 1));
    // A key of many rows may pass several multiples: empty ranges cost nothing.
    while (ends_[k] + k + 1 >= cuts.size() * kRange) cuts.push_back(static_cast<uint32_t>(k + 1));
  }
  if (cuts.back() < n_keys) cuts.push_back(static_cast<uint32_t>(n_keys));
  const float* const* const rows_end = rows_.get() + n_;
  executor.ParallelFor(cuts.size() - 1, 1, [&](size_t first, size_t last) {
    for (size_t range = first; range < last; ++range) {
      size_t begin = cuts[range] == 0 ? 0 : ends_[cuts[range] - 1];
      for (size_t k = cuts[range]; k < cuts[range + 1]; ++k) {
        const size_t end = ends_[k];
        float* const out = sums + k * dim;
        std::fill(out, out + dim, 0.0f);
        // In pieces, so that rows are fetched a few before they are needed, not all of a hot key at
        // once.
        for (size_t r = begin; r < end; r += kAhead) {
          const size_t n = std::min(kAhead, end - r);
          const float* const* ahead = rows_.get() + r + kAhead;
          for (size_t i = 0; i < n && ahead + i < rows_end; ++i)
            Prefetch(ahead[i], dim * sizeof(float));
          AddRows(rows_.get() + r, weighted_ ? weights_.get() + r : nullptr, n, dim, out);
        }
        begin = end;
      }
      if (done) done(cuts[range], cuts[range + 1]);
    }
  });
}

}  // namespace tsps
