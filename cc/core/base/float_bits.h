// The bits of a float32.
#ifndef TFSPS_CORE_BASE_FLOAT_BITS_H_
#define TFSPS_CORE_BASE_FLOAT_BITS_H_

#include <cstdint>
#include <cstring>

namespace tsps {

constexpr uint32_t kFloatMagnitude = 0x7FFFFFFF;  // all but the sign
constexpr uint32_t kFloatInfinity = 0x7F800000;
constexpr int kFloatFractionBits = 23;
constexpr uint32_t kFloatBias = 127;  // added to the exponent

// Returns the bits of 2^exponent.
constexpr uint32_t BitsOfPower(int exponent) {
  return (kFloatBias + static_cast<uint32_t>(exponent)) << kFloatFractionBits;
}

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_FLOAT_BITS_H_
