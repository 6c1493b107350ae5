// WireType: how the floats of gradients are written between nodes.
//
// Narrowing rounds to nearest, ties to even. Infinities and the signs of zeros stay; a NaN stays a
// NaN, quiet, with the leading bits of its payload. What is beyond the largest finite number by
// half a unit of its last place or more becomes an infinity: from 65520 on in float16. Numbers
// below 2^-14 lose bits in float16, and below 2^-25 become zeros; bfloat16 has float32's range.
// Widening is exact.
#ifndef TFSPS_CORE_WIRE_WIRE_TYPE_H_
#define TFSPS_CORE_WIRE_WIRE_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

enum class WireType : uint32_t {
  kFloat32 = 0,
  kBfloat16 = 1,  // float32's 8 bits of exponent, 7 of fraction
  kFloat16 = 2,   // IEEE 754 binary16: 5 bits of exponent, 10 of fraction
};

// "float32" | "bfloat16" | "float16".
Result<WireType> WireTypeFromName(const std::string& name);
const char* WireTypeName(WireType type);
inline size_t WireTypeBytes(WireType type) { return type == WireType::kFloat32 ? 4 : 2; }

// out: n numbers of the type, little-endian; need not be aligned. float32 keeps every bit.
void NarrowFloats(WireType type, const float* values, size_t n, uint8_t* out);
void WidenFloats(WireType type, const uint8_t* wire, size_t n, float* values);

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_TYPE_H_
