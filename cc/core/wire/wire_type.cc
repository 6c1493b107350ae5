#include "core/wire/wire_type.h"

#include <cstring>

#include "core/base/float16.h"

namespace tsps {

Result<WireType> WireTypeFromName(const std::string& name) {
  for (const WireType type : {WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16}) {
    if (name == WireTypeName(type)) return type;
  }
  return Error(Code::kInvalidArgument,
               "unknown wire type; expected float32, bfloat16 or float16. Received: '", name, "'");
}

const char* WireTypeName(WireType type) {
  switch (type) {
    case WireType::kFloat32:
      return "float32";
    case WireType::kBfloat16:
      return "bfloat16";
    case WireType::kFloat16:
      return "float16";
  }
  return "unknown";
}

void NarrowFloats(WireType type, const float* values, size_t n, uint8_t* out) {
  switch (type) {
    case WireType::kFloat32:
      if (n > 0) std::memcpy(out, values, n * sizeof(float));
      break;
    case WireType::kBfloat16:
      FloatsToBfloat16(values, n, out);
      break;
    case WireType::kFloat16:
      FloatsToFloat16(values, n, out);
      break;
  }
}

void WidenFloats(WireType type, const uint8_t* wire, size_t n, float* values) {
  switch (type) {
    case WireType::kFloat32:
      if (n > 0) std::memcpy(values, wire, n * sizeof(float));
      break;
    case WireType::kBfloat16:
      Bfloat16ToFloats(wire, n, values);
      break;
    case WireType::kFloat16:
      Float16ToFloats(wire, n, values);
      break;
  }
}

}  // namespace tsps
