// RowCode: how a serving file stores rows. float32 is exact; the others take less space.
//
// int8 has a scale and an offset for each row (Jacob et al., "Quantization and Training of Neural
// Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018): an element q stands for
// offset + scale * q, rounded to the nearest. The smallest and the largest element of a row are
// -128 and 127.
#ifndef TFSPS_CORE_SERVING_ROW_CODE_H_
#define TFSPS_CORE_SERVING_ROW_CODE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/initializer.h"
#include "core/table/layout.h"

namespace tsps {

enum class RowCode : uint32_t { kFloat32 = 1, kBfloat16 = 2, kFloat16 = 3, kInt8 = 4 };

// Returns the code of a name: "float32", "bfloat16", "float16" or "int8". InvalidArgument for
// others.
Result<RowCode> RowCodeFromName(const std::string& name);
const char* RowCodeName(RowCode code);
bool IsRowCode(uint32_t number);

// Returns the bytes of a row of `dim` elements.
size_t CodedBytes(RowCode code, size_t dim);

// Writes a row in its code. InvalidArgument, naming the value: int8 cannot represent values that
// are not finite, and 16-bit floats none beyond their range.
Status EncodeRow(RowCode code, const float* row, size_t dim, char* coded);
// Writes the floats of a row.
void DecodeRow(RowCode code, const char* coded, size_t dim, float* row);

// How far coded rows are from the rows. The error of a row is the Euclidean norm of the difference
// relative to that of the row.
struct CodeError {
  static constexpr double kBound = 0.01;

  double sum = 0;     // of the errors of all rows
  double max = 0;     // the largest error
  uint64_t rows = 0;  // number of rows
  uint64_t over = 0;  // number of rows whose error exceeds kBound

  void Add(const float* row, const float* decoded, size_t dim);
  void Add(const CodeError& other);
};

// The rows of keys that a file does not have: their initial values, as training sees them, then
// rounded as the rows of the file.
class AbsentRows {
 public:
  AbsentRows(const InitializerConfig& initializer, PlaneType row_type, RowCode code, size_t dim)
      : initializer_(initializer), row_type_(row_type), code_(code), dim_(dim) {}

  // Writes the rows of keys, float[n, dim]. `scratch` has 2 * dim + 8 bytes. Thread-safe.
  void Rows(const int64_t* keys, size_t n, char* scratch, float* rows) const;

 private:
  const InitializerConfig initializer_;
  const PlaneType row_type_;
  const RowCode code_;
  const size_t dim_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_SERVING_ROW_CODE_H_
