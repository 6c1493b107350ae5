#include "core/gradients/merge.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>

#include "core/base/simd.h"
#include "core/gradients/dedupe.h"
#include "core/gradients/key_count.h"
#include "core/gradients/row_sums.h"

namespace tsps {
namespace {

// The number of floats that a thread checks before it reads the shared result again.
constexpr size_t kCheckFloats = 4096;
constexpr size_t kDivideGrain = 4096;  // keys

TSPS_SIMD_CLONES
void DivideRow(size_t dim, float divisor, float* row) {
  for (size_t i = 0; i < dim; ++i) row[i] /= divisor;
}

// NaN and infinity are the floats whose exponent bits are all set.
TSPS_SIMD_CLONES
bool HasNonFinite(const float* values, size_t n) {
  uint32_t non_finite = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof(bits));
    non_finite |= (bits & 0x7F800000u) == 0x7F800000u;
  }
  return non_finite != 0;
}

}  // namespace

Result<Reduction> ReductionFromName(const std::string& name) {
  if (name == "frequency") return Reduction::kFrequency;
  if (name == "average") return Reduction::kAverage;
  if (name == "sum") return Reduction::kSum;
  if (name == "local") return Reduction::kLocal;
  return Error(Code::kInvalidArgument,
               "unknown reduction; expected frequency, average, sum or local. Received: '", name,
               "'");
}

Status MergeKeys(const std::vector<GradientSet>& sets, Reduction reduction,
                 MergedGradients* merged) {
  size_t n = 0;
  for (const GradientSet& set : sets) n += set.n;
  if (n > static_cast<size_t>(INT32_MAX)) {
    return Error(Code::kInvalidArgument, "cannot merge more than 2^31 - 1 rows. Received: ", n);
  }
  merged->inverse.resize(n);
  std::vector<IdSpan> spans;
  int32_t* positions = merged->inverse.data();
  for (const GradientSet& set : sets) {
    spans.push_back({set.keys, set.n, positions});
    positions += set.n;
  }
  merged->keys = Dedupe(spans);
  const bool local = reduction == Reduction::kLocal;
  merged->counts.assign(merged->keys.size(), local ? 1 : 0);
  if (local) return Status();
  for (size_t s = 0; s < sets.size(); ++s) {
    for (size_t i = 0; i < sets[s].n; ++i) {
      const int32_t count = sets[s].counts == nullptr ? 1 : sets[s].counts[i];
      if (!AddCount(count, &merged->counts[static_cast<size_t>(spans[s].inverse[i])])) {
        return Error(Code::kInvalidArgument, "counts[", i, "] of key ", sets[s].keys[i],
                     " must have a number of ranks, 1 or more and at most ", kMostRanks,
                     " in sum, and at most ", kMostOccurrences, " occurrences. Received: ", count);
      }
    }
  }
  return Status();
}

Status MergeRows(const std::vector<GradientSet>& sets, size_t dim, const MergedGradients& merged,
                 Reduction reduction, int64_t world_size, float* reduced, Executor& executor) {
  const size_t n_keys = merged.keys.size();
  if (reduction == Reduction::kAverage && world_size < 1) {
    return Error(Code::kInvalidArgument, "world_size must be at least 1. Received: ", world_size);
  }
  if (reduction == Reduction::kFrequency && merged.counts.size() != n_keys) {
    return Error(Code::kInvalidArgument, "expected a count for each of ", n_keys,
                 " keys. Received: ", merged.counts.size());
  }
  std::vector<RowSpan> rows;
  const int32_t* positions = merged.inverse.data();
  for (const GradientSet& set : sets) {
    rows.push_back({set.rows, positions, set.n});
    positions += set.n;
  }
  TSPS_RETURN_IF_ERROR(SumRowsByKey(rows, n_keys, dim, reduced, executor));

  const bool by_count = reduction == Reduction::kFrequency;
  const float world = reduction == Reduction::kAverage ? static_cast<float>(world_size) : 1.0f;
  if (!by_count && world == 1.0f) return Status();
  executor.ParallelFor(n_keys, kDivideGrain, [&](size_t first_key, size_t last_key) {
    for (size_t k = first_key; k < last_key; ++k) {
      const float divisor = by_count ? static_cast<float>(RanksOf(merged.counts[k])) : world;
      // A multiplication by 1 / divisor would round twice. Most keys occur on one rank only.
      if (divisor != 1.0f) DivideRow(dim, divisor, reduced + k * dim);
    }
  });
  return Status();
}

int64_t FirstNonFiniteRow(const float* rows, size_t n, size_t dim, Executor& executor) {
  if (dim == 0) return -1;
  std::atomic<int64_t> lowest{INT64_MAX};
  const size_t step = std::max<size_t>(1, kCheckFloats / dim);
  executor.ParallelFor(n, 16 * step, [&](size_t begin, size_t end) {
    for (size_t first = begin; first < end; first += step) {
      if (static_cast<int64_t>(first) > lowest.load(std::memory_order_relaxed)) return;
      const size_t last = std::min(end, first + step);
      if (!HasNonFinite(rows + first * dim, (last - first) * dim)) continue;
      int64_t row = static_cast<int64_t>(first);
      while (!HasNonFinite(rows + static_cast<size_t>(row) * dim, dim)) ++row;
      int64_t before = lowest.load(std::memory_order_relaxed);
      while (row < before && !lowest.compare_exchange_weak(before, row)) {
      }
      return;
    }
  });
  const int64_t row = lowest.load();
  return row == INT64_MAX ? -1 : row;
}

}  // namespace tsps
