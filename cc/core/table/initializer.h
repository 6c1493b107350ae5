// The initial value of a row: a pure function of (seed, table, key).
//
// A lookup of an absent key returns it without writing anything, in every process the same, and the
// first update of the key starts from it. Definitions follow keras.initializers (distributions, not
// bits): VarianceScaling kinds (glorot, he, lecun) are reduced to uniform/truncated normal by the
// Python layer, which knows the table's full shape.
//
// Bit-identical on every machine: the Philox4x32-10 counter generator (Salmon et al., "Parallel
// Random Numbers: As Easy as 1, 2, 3", SC 2011) with IEEE add, multiply, divide and sqrt only; no
// libm, whose results differ between versions and CPUs.
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
  // a: mean, b: stddev; within two stddev of the mean, as keras redraws beyond
  kTruncatedNormal = 4,
};

struct InitializerConfig {
  InitializerKind kind = InitializerKind::kZeros;
  float a = 0;
  float b = 0;
  uint64_t seed = 0;  // of the job
  uint64_t salt = 0;  // of the table, so that tables with one seed differ
};

// "zeros" | "constant" | "uniform" | "normal" | "truncated_normal".
Result<InitializerKind> InitializerKindFromName(const std::string& name);
const char* InitializerKindName(InitializerKind kind);
// Refuses non-finite parameters, minval > maxval and stddev < 0, naming the value.
Status ValidateInitializer(const InitializerConfig& config);

// Writes row `key`, `dim` floats.
void InitialRow(const InitializerConfig& config, int64_t key, size_t dim, float* row);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_INITIALIZER_H_
