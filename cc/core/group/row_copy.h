// Copies rows from scattered addresses to an output.
#ifndef TFSPS_CORE_GROUP_ROW_COPY_H_
#define TFSPS_CORE_GROUP_ROW_COPY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/executor.h"
#include "core/base/prefetch.h"
#include "core/base/stream_copy.h"
#include "core/table/planes.h"
#include "core/table/row_type.h"

namespace tsps {

constexpr size_t kCopyBytes = 1 << 18;  // a thread's range of the output

// How many rows are prefetched ahead of the one that is copied. Their addresses come from a cached
// array or are computed.
constexpr size_t kAhead = 32;

// Sets out[i] to the row at row_at(i), as floats; `out` is float[n, dim].
template <typename RowAt>
void CopyRows(const RowAt& row_at, PlaneType type, size_t dim, size_t n, float* out,
              Executor& executor) {
  const size_t bytes = dim * sizeof(float);
  const size_t row_bytes = dim * ElementBytes(type);
  const bool stream = n * bytes >= kStreamedBytes && CanStream(out, bytes);
  executor.ParallelFor(n, std::max<size_t>(1, kCopyBytes / bytes), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < std::min(end, begin + kAhead); ++i) {
      Prefetch(row_at(i), row_bytes);
    }
    for (size_t i = begin; i < end; ++i) {
      PrefetchAhead<kAhead>(i, end, [&](size_t next) { Prefetch(row_at(next), row_bytes); });
      ReadRow(type, row_at(i), dim, stream, out + i * dim);
    }
    if (stream) StreamFence();
  });
}

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ROW_COPY_H_
