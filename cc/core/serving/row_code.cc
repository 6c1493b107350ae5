#include "core/serving/row_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/simd.h"
#include "core/table/row_type.h"

namespace tsps {
namespace {

constexpr const char* kRowCodeNames[] = {"float32", "bfloat16", "float16", "int8"};

// The numbers before the elements of an int8 row.
struct Int8Range {
  float scale;
  float offset;
};

PlaneType FloatTypeOf(RowCode code) {
  return code == RowCode::kBfloat16  ? PlaneType::kBfloat16
         : code == RowCode::kFloat16 ? PlaneType::kFloat16
                                     : PlaneType::kFloat32;
}

TSPS_SIMD_CLONES
void Quantize(const float* __restrict__ row, size_t n, float offset, float inverse_scale,
              int8_t* __restrict__ quantized) {
  for (size_t i = 0; i < n; ++i) {
    float steps = (row[i] - offset) * inverse_scale;
    steps = steps < -128.0f ? -128.0f : steps;
    steps = steps > 127.0f ? 127.0f : steps;
    // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
    const float shifted = steps + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    quantized[i] = static_cast<int8_t>(bits & 0xFF);
  }
}

TSPS_SIMD_CLONES
void Dequantize(const int8_t* __restrict__ quantized, size_t n, float offset, float scale,
                float* __restrict__ row) {
  for (size_t i = 0; i < n; ++i) row[i] = offset + scale * static_cast<float>(quantized[i]);
}

// Returns the position of the first value that is not finite; n if all are.
size_t FirstNotFinite(const float* row, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(row[i])) return i;
  }
  return n;
}

Status EncodeInt8(const float* row, size_t dim, char* coded) {
  if (const size_t at = FirstNotFinite(row, dim); at < dim) {
    return Error(Code::kInvalidArgument, "element ", at, " is ", row[at],
                 ", which int8 rows cannot represent");
  }
  const auto [low, high] = std::minmax_element(row, row + dim);
  const double scale = (static_cast<double>(*high) - *low) / 255;
  Int8Range range{static_cast<float>(scale), static_cast<float>(*low + 128 * scale)};
  // A range too small for a float32 scale is one value.
  const float inverse = range.scale > 0 ? static_cast<float>(1 / scale) : 0;
  if (!std::isfinite(inverse)) range = {0, *low};
  std::memcpy(coded, &range, sizeof(range));
  Quantize(row, dim, range.offset, std::isfinite(inverse) ? inverse : 0,
           reinterpret_cast<int8_t*>(coded + sizeof(range)));
  return Status();
}

}  // namespace

Result<RowCode> RowCodeFromName(const std::string& name) {
  for (uint32_t number = 1; IsRowCode(number); ++number) {
    if (name == kRowCodeNames[number - 1]) return static_cast<RowCode>(number);
  }
  return Error(Code::kInvalidArgument,
               "rows must be float32, bfloat16, float16 or int8. Received: '", name, "'");
}

const char* RowCodeName(RowCode code) {
  const auto number = static_cast<uint32_t>(code);
  return IsRowCode(number) ? kRowCodeNames[number - 1] : "unknown";
}

bool IsRowCode(uint32_t number) { return number >= 1 && number <= 4; }

size_t CodedBytes(RowCode code, size_t dim) {
  switch (code) {
    case RowCode::kFloat32:
      return dim * 4;
    case RowCode::kBfloat16:
    case RowCode::kFloat16:
      return dim * 2;
    case RowCode::kInt8:
      return sizeof(Int8Range) + dim;
  }
  return 0;
}

Status EncodeRow(RowCode code, const float* row, size_t dim, char* coded) {
  if (code == RowCode::kInt8) return EncodeInt8(row, dim, coded);
  if (code == RowCode::kFloat32) {
    std::memcpy(coded, row, dim * sizeof(float));
    return Status();
  }
  const PlaneType type = FloatTypeOf(code);
  if (const int64_t at = FirstBeyondRange(type, row, dim); at >= 0) {
    return Error(Code::kInvalidArgument, "element ", at, " is ", row[at],
                 ", which is beyond the range of ", RowCodeName(code));
  }
  NarrowRow(type, row, dim, coded);
  return Status();
}

void DecodeRow(RowCode code, const char* coded, size_t dim, float* row) {
  if (code != RowCode::kInt8) return WidenRow(FloatTypeOf(code), coded, dim, row);
  Int8Range range;
  std::memcpy(&range, coded, sizeof(range));
  Dequantize(reinterpret_cast<const int8_t*>(coded + sizeof(range)), dim, range.offset, range.scale,
             row);
}

void CodeError::Add(const float* row, const float* decoded, size_t dim) {
  double norm = 0, difference = 0;
  for (size_t i = 0; i < dim; ++i) {
    const double error = static_cast<double>(row[i]) - decoded[i];
    norm += static_cast<double>(row[i]) * row[i];
    difference += error * error;
  }
  const double relative = difference == 0 ? 0 : std::sqrt(difference / norm);
  sum += relative;
  max = std::max(max, relative);
  ++rows;
  over += relative > kBound;
}

void CodeError::Add(const CodeError& other) {
  sum += other.sum;
  max = std::max(max, other.max);
  rows += other.rows;
  over += other.over;
}

void AbsentRows::Rows(const int64_t* keys, size_t n, char* scratch, float* rows) const {
  InitialRows(initializer_, keys, n, dim_, rows);
  const bool is_coded =
      code_ != RowCode::kFloat32 && (code_ == RowCode::kInt8 || FloatTypeOf(code_) != row_type_);
  if (!IsNarrow(row_type_) && !is_coded) return;
  for (float* row = rows; row < rows + n * dim_; row += dim_) {
    if (IsNarrow(row_type_)) {
      NarrowRow(row_type_, row, dim_, scratch);
      WidenRow(row_type_, scratch, dim_, row);
    }
    if (is_coded && EncodeRow(code_, row, dim_, scratch).ok()) {
      DecodeRow(code_, scratch, dim_, row);
    }
  }
}

}  // namespace tsps
