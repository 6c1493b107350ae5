#include "core/gradients/scaled_copy.h"

#include <algorithm>
#include <cmath>

#include "core/base/simd.h"

namespace tsps {
namespace {

constexpr size_t kGrainFloats = 16 << 10;

TSPS_SIMD_CLONES
void Multiply(const float* __restrict__ from, float factor, size_t n, float* __restrict__ to) {
  for (size_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

TSPS_SIMD_CLONES
void Divide(const float* __restrict__ from, float divisor, size_t n, float* __restrict__ to) {
  for (size_t i = 0; i < n; ++i) to[i] = from[i] / divisor;
}

// Calls body for pieces of the copies in parallel: one thread takes many small copies, several
// threads share a large one.
template <typename Body>
void ForEachPiece(const std::vector<FloatCopy>& copies, Executor& executor, const Body& body) {
  std::vector<size_t> ends;  // the end of each copy among all floats
  size_t total = 0;
  for (const FloatCopy& copy : copies) ends.push_back(total += copy.n);
  executor.ParallelFor(total, kGrainFloats, [&](size_t begin, size_t end) {
    auto c = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (size_t at = begin; at < end; at = ends[c++]) {
      const FloatCopy& copy = copies[c];
      const size_t first = at - (ends[c] - copy.n);
      const size_t n = std::min(end, ends[c]) - at;
      body(FloatCopy{copy.from + first, copy.to + first, n});
    }
  });
}

void Clear(const std::vector<FloatCopy>& copies) {
  for (const FloatCopy& copy : copies) std::fill_n(copy.to, copy.n, 0.0f);
}

}  // namespace

void CopyMultiplied(const std::vector<FloatCopy>& copies, float factor, Executor& executor) {
  if (factor == 0.0f) return Clear(copies);
  ForEachPiece(copies, executor,
               [&](const FloatCopy& piece) { Multiply(piece.from, factor, piece.n, piece.to); });
}

void CopyDivided(const std::vector<FloatCopy>& copies, float divisor, Executor& executor) {
  if (divisor == 0.0f || !std::isfinite(divisor)) return Clear(copies);
  ForEachPiece(copies, executor,
               [&](const FloatCopy& piece) { Divide(piece.from, divisor, piece.n, piece.to); });
}

}  // namespace tsps
