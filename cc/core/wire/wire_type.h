// WireType: how the floats of gradients are written between nodes; as 16-bit floats they are
// rounded as base/float16.h says.
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
