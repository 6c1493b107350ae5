// What a table's rows are stored as: float32, or 16-bit floats, which halve the memory and what a
// lookup reads. Updates are computed in float32, slots are float32 always, and lookups give
// float32; only what lies in the table is narrow.
//
// A row of 16 bits is rounded after each update. To the nearest, steps that are smaller than half a
// unit in the last place change nothing, and training stalls: bfloat16 has 8 bits. Stochastically
// (Gupta, Agrawal, Gopalakrishnan, Narayanan: "Deep Learning with Limited Numerical Precision",
// ICML 2015) a value x between two neighbours a < b becomes b with probability (x - a) / (b - a):
// what is expected is x. The draw is a pure function of (seed, key, step, element), so that the
// tables of two nodes have the same bits.
//
// A finite value beyond the largest number of the type becomes that number, not infinity.
#ifndef TFSPS_CORE_TABLE_ROW_TYPE_H_
#define TFSPS_CORE_TABLE_ROW_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/racy_copy.h"
#include "core/base/status.h"
#include "core/base/stream_copy.h"
#include "core/table/initializer.h"
#include "core/table/layout.h"

namespace tsps {

// How the result of an update becomes a row of 16 bits. A float32 row is never rounded.
enum class Rounding : uint32_t { kStochastic = 0, kNearest = 1 };

// "stochastic" | "nearest".
Result<Rounding> RoundingFromName(const std::string& name);
const char* RoundingName(Rounding rounding);

// kFloat32, kBfloat16 or kFloat16.
bool IsRowType(PlaneType type);
inline bool IsNarrow(PlaneType type) { return type != PlaneType::kFloat32; }

// The floats that a row of n elements stands for. Exact.
void WidenRow(PlaneType type, const void* row, size_t n, float* values);
// The same of a row that a writer may be changing (base/racy_copy.h); past the caches if `stream`,
// for CanStream(values, n * sizeof(float)).
inline void ReadRow(PlaneType type, const void* row, size_t n, bool stream, float* values);
// Rounds values to the nearest, ties to even.
void NarrowRow(PlaneType type, const float* values, size_t n, void* row);
// Rounds them up or down; `draw` is RowDraw()'s.
void NarrowRowStochastically(PlaneType type, const float* values, size_t n, uint64_t draw,
                             void* row);
// What the rounding of a row in a step depends on: seed and salt of the table's initializer.
uint64_t RowDraw(const InitializerConfig& table, int64_t key, uint64_t step);

// What ReadRow does if IsNarrow(type).
void ReadNarrowRow(PlaneType type, const void* row, size_t n, bool stream, float* values);

// Position of the first finite value for which the type has no number but infinity; -1: none.
int64_t FirstBeyondRange(PlaneType type, const float* values, size_t n);

inline void ReadRow(PlaneType type, const void* row, size_t n, bool stream, float* values) {
  if (IsNarrow(type)) return ReadNarrowRow(type, row, n, stream, values);
  if (stream) return StreamCopy(values, row, n * sizeof(float));
  RacyRead(values, row, n * sizeof(float));
}

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_TYPE_H_
