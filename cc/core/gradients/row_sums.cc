#include "core/gradients/row_sums.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "core/base/prefetch.h"
#include "core/base/simd.h"

namespace tsps {
namespace {

constexpr size_t kAhead = 8;             // the distance of prefetches, in items
constexpr size_t kChunk = 1024;          // items
constexpr size_t kKeyBlock = 16;         // neighboring keys that one thread sums
constexpr size_t kWorthSharing = 16384;  // floats

// Adds four rows in each pass over `out`, which saves three of four loads and stores. The order of
// additions is the same.
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

// The sums of one thread's share of the keys. Keys are usually numbered in the order of their first
// occurrence: keys from `next` on have had no row yet, and their sums are not set to 0 yet.
struct ShareOfSums {
  const size_t share;
  const size_t shares;
  const size_t dim;
  float* const sums;
  size_t next = 0;

  bool Mine(size_t key) const {
    if (shares == 1) return true;
    // Multiplications, because a division takes longer than the sum of a short row.
    const uint32_t hash = static_cast<uint32_t>(key / kKeyBlock) * 0x9E3779B1u;
    return (uint64_t{hash} * shares) >> 32 == share;
  }
  float* Sum(size_t key) const { return sums + key * dim; }
  // Sets the sums of the share's keys before `end` to 0.
  void Extend(size_t end) {
    for (; next < end; ++next) {
      if (Mine(next)) std::fill_n(Sum(next), dim, 0.0f);
    }
  }
};

// Selects the share's items among [begin, end). Returns how many there are.
size_t Select(const ShareOfSums& share, const int32_t* inverse, size_t begin, size_t end,
              uint32_t* items) {
  size_t n = 0;
  for (size_t i = begin; i < end; ++i) {
    items[n] = static_cast<uint32_t>(i);
    n += share.Mine(static_cast<size_t>(inverse[i]));
  }
  return n;
}

inline __attribute__((always_inline)) void AddRow(const float* __restrict__ row, size_t dim,
                                                  float* __restrict__ out) {
  for (size_t d = 0; d < dim; ++d) out[d] += row[d];
}
inline __attribute__((always_inline)) void AddRow(const float* __restrict__ row, float weight,
                                                  size_t dim, float* __restrict__ out) {
  for (size_t d = 0; d < dim; ++d) out[d] += weight * row[d];
}

inline __attribute__((always_inline)) size_t RowOf(const RowSpan& span, uint32_t item) {
  return span.positions == nullptr ? item : static_cast<size_t>(span.positions[item]);
}

// Adds items to their sums, with one dispatch for many rows. `items` has kAhead more valid items
// after the n-th, which are only prefetched.
TSPS_SIMD_CLONES
void AddItems(const RowSpan& span, const uint32_t* items, size_t n, ShareOfSums* share) {
  const size_t dim = share->dim;
  for (size_t j = 0; j < n; ++j) {
    const uint32_t i = items[j];
    const auto key = static_cast<size_t>(span.inverse[i]);
    const uint32_t later = items[j + kAhead];
    Prefetch(share->Sum(static_cast<size_t>(span.inverse[later])), dim * sizeof(float));
    Prefetch(span.rows + RowOf(span, later) * dim, dim * sizeof(float));
    if (key >= share->next) share->Extend(key + 1);
    float* const out = share->Sum(key);
    const float* const row = span.rows + RowOf(span, i) * dim;
    if (span.weights == nullptr) {
      AddRow(row, dim, out);
    } else {
      AddRow(row, span.weights[i], dim, out);
    }
  }
}

void AddSpan(const RowSpan& span, ShareOfSums* share) {
  uint32_t items[kChunk + kAhead];
  for (size_t begin = 0; begin < span.n; begin += kChunk) {
    const size_t n = Select(*share, span.inverse, begin, std::min(span.n, begin + kChunk), items);
    if (n == 0) continue;
    std::fill_n(items + n, kAhead, items[n - 1]);
    AddItems(span, items, n, share);
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

Status SumRowsByKey(const std::vector<RowSpan>& spans, size_t n_keys, size_t dim, float* sums,
                    Executor& executor) {
  size_t n = 0;
  for (const RowSpan& span : spans) {
    if (span.n > static_cast<size_t>(INT32_MAX) - n) {
      return Error(Code::kInvalidArgument,
                   "one segment sum can have at most 2^31 - 1 rows. Received: more");
    }
    n += span.n;
    uint32_t highest = 0;
    for (size_t i = 0; i < span.n; ++i) {
      // A negative inverse becomes a large number.
      highest = std::max(highest, static_cast<uint32_t>(span.inverse[i]));
    }
    if (span.n == 0 || highest < n_keys) continue;
    size_t bad = 0;
    while (static_cast<uint32_t>(span.inverse[bad]) < n_keys) ++bad;
    return Error(Code::kInvalidArgument, "inverse[", bad, "] must be in [0, ", n_keys,
                 "), the number of keys. Received: ", span.inverse[bad]);
  }
  ForEachShare(n * dim >= kWorthSharing, executor, [&](size_t number, size_t shares) {
    ShareOfSums share{number, shares, dim, sums};
    for (const RowSpan& span : spans) AddSpan(span, &share);
    share.Extend(n_keys);  // keys without rows
  });
  return Status();
}

}  // namespace tsps
