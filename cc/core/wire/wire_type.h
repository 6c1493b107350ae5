// WireType: the type of the floats that travel between nodes. base/float16.h describes how floats
// are rounded to 16 bits.
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

// Returns the type named "float32", "bfloat16" or "float16".
Result<WireType> WireTypeFromName(const std::string& name);
const char* WireTypeName(WireType type);
inline size_t WireTypeBytes(WireType type) { return type == WireType::kFloat32 ? 4 : 2; }

// Convert n floats to and from numbers of the type, which are little-endian and may have any
// alignment. float32 keeps every bit.
void NarrowFloats(WireType type, const float* values, size_t n, uint8_t* out);
void WidenFloats(WireType type, const uint8_t* wire, size_t n, float* values);

}  // namespace tsps

#endif  // TFSPS_CORE_WIRE_WIRE_TYPE_H_
