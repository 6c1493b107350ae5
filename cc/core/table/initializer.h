// Initial values of rows: a pure function of (seed, table, key).
//
// A lookup of an absent key returns the initial value, the same in every process, and writes
// nothing. The first update of the key starts from it. The distributions are those of
// keras.initializers, the bits are not. The Python layer knows the table's full shape and reduces
// VarianceScaling kinds (glorot, he, lecun) to uniform or truncated normal.
//
// Values have the same bits on every machine. They come from the counter-based generator
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) and use
// only IEEE add, multiply, divide and sqrt. They do not use libm, whose results differ between
// versions and processors.
#ifndef TFSPS_CORE_TABLE_INITIALIZER_H_
#define TFSPS_CORE_TABLE_INITIALIZER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

enum class InitializerKind : uint32_t {
  kZeros = 0,
  kConstant = 1,  // a: the value (ones is constant 1)
  kUniform = 2,   // a: minval, b: maxval; [a, b)
  kNormal = 3,    // a: mean, b: stddev
  // a: mean, b: stddev; within two stddev of the mean (Keras redraws values beyond)
  kTruncatedNormal = 4,
};

struct InitializerConfig {
  InitializerKind kind = InitializerKind::kZeros;
  float a = 0;
  float b = 0;
  uint64_t seed = 0;  // the seed of the job
  uint64_t salt = 0;  // the salt of the table, so that tables with one seed differ
};

// Returns the kind of a name: "zeros", "constant", "uniform", "normal" or "truncated_normal".
// InvalidArgument for other names.
Result<InitializerKind> InitializerKindFromName(const std::string& name);
const char* InitializerKindName(InitializerKind kind);
// Returns InvalidArgument, naming the value, for non-finite parameters, minval > maxval and stddev
// < 0.
Status ValidateInitializer(const InitializerConfig& config);

// Writes the initial rows of keys, float[n, dim]. The config must be valid. Thread-safe.
void InitialRows(const InitializerConfig& config, const int64_t* keys, size_t n, size_t dim,
                 float* rows);
// Writes the initial row of `key`, `dim` floats. The config must be valid. Thread-safe.
void InitialRow(const InitializerConfig& config, int64_t key, size_t dim, float* row);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_INITIALIZER_H_
