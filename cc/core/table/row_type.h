// The type of a table's rows: float32, or 16-bit floats, which halve the memory and the bytes that
// a lookup reads. Only the stored rows are narrow: updates are computed in float32, slots are
// always float32, and lookups return float32.
//
// A 16-bit row is rounded after each update. If it is rounded to the nearest value, a change of
// less than half a unit in the last place has no effect, and training stalls, because bfloat16 has
// a precision of 8 bits. Stochastic rounding (Gupta, Agrawal, Gopalakrishnan, Narayanan: "Deep
// Learning with Limited Numerical Precision", ICML 2015) turns a value x between its neighbours a <
// b into b with probability (x - a) / (b - a), so that the expected value is x. The draw is a pure
// function of (seed, key, step, element), so that the tables of two nodes have the same bits.
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

// The rounding of an update's result to a 16-bit row. A float32 row is never rounded.
enum class Rounding : uint32_t { kStochastic = 0, kNearest = 1 };

// Returns the rounding of a name, "stochastic" or "nearest". InvalidArgument for others.
Result<Rounding> RoundingFromName(const std::string& name);
const char* RoundingName(Rounding rounding);

// Returns whether rows can have this type: kFloat32, kBfloat16 or kFloat16.
bool IsRowType(PlaneType type);
inline bool IsNarrow(PlaneType type) { return type != PlaneType::kFloat32; }

// Writes the floats of a row of n elements. Exact.
void WidenRow(PlaneType type, const void* row, size_t n, float* values);
// Does the same for a row that a writer may be changing (base/racy_copy.h). `stream`: bypass the
// caches; requires CanStream(values, n * sizeof(float)).
inline void ReadRow(PlaneType type, const void* row, size_t n, bool stream, float* values);
// Writes a row, rounded to nearest, ties to even.
void NarrowRow(PlaneType type, const float* values, size_t n, void* row);
// Writes a row, rounded up or down at random; `draw` is from RowDraw().
void NarrowRowStochastically(PlaneType type, const float* values, size_t n, uint64_t draw,
                             void* row);
// Returns the draw for the rounding of a row in a step. It also depends on the seed and salt of the
// table's initializer.
uint64_t RowDraw(const InitializerConfig& table, int64_t key, uint64_t step);

// ReadRow for narrow types.
void ReadNarrowRow(PlaneType type, const void* row, size_t n, bool stream, float* values);

// Returns the position of the first finite value that the type can only represent as infinity; -1
// if there is none.
int64_t FirstBeyondRange(PlaneType type, const float* values, size_t n);

inline void ReadRow(PlaneType type, const void* row, size_t n, bool stream, float* values) {
  if (IsNarrow(type)) return ReadNarrowRow(type, row, n, stream, values);
  if (stream) return StreamCopy(values, row, n * sizeof(float));
  RacyRead(values, row, n * sizeof(float));
}

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_ROW_TYPE_H_
