#include "core/base/float16.h"

#include <algorithm>
#include <cstring>

#include "core/base/float_bits.h"
#include "core/base/simd.h"

namespace tsps {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "numbers are stored as they are in memory");

// float32 has 8 exponent bits with bias 127, and 23 fraction bits. float16 has 5 with bias 15, and
// 10.
constexpr uint32_t kExponentOne = 1 << kFloatFractionBits;
constexpr uint32_t kBiasChange = (kFloatBias - 15) << kFloatFractionBits;
constexpr uint32_t kHalfOverflow = BitsOfPower(16);  // becomes infinity
constexpr uint32_t kHalfMinNormal = BitsOfPower(-14);

// Shifts with rounding to nearest, ties to even: adds just below half a unit of the result's last
// place, and one more if the last bit of the result is odd. A carry may run into the exponent, up
// to infinity's.
inline uint32_t RoundedShift(uint32_t bits, int shift) {
  return (bits + ((1u << (shift - 1)) - 1) + (bits >> shift & 1)) >> shift;
}

inline uint16_t Bfloat16Of(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t nan = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & kFloatMagnitude) > kFloatInfinity ? nan
                                                                         : RoundedShift(bits, 16));
}

// Returns `condition ? yes : no`. With the operator itself, GCC moves float operations of `yes`
// into a branch and then does not vectorize the loop.
inline uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// Follows F. Giesen's float_to_half_fast3_rtne: adding 0.5 rounds numbers that are subnormal in
// float16, because the last bit of the sum is worth 2^-24. TensorFlow's threads flush operands and
// results that are subnormal in float32 to zero. That changes no result here and below.
inline uint16_t Float16Of(float value) {
  const uint32_t bits = BitsOf(value), magnitude = bits & kFloatMagnitude;
  const uint32_t nan = 0x7E00 | (magnitude >> 13 & 0x3FF);
  const uint32_t normal = RoundedShift(std::min(magnitude, kHalfOverflow) - kBiasChange, 13);
  const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  uint32_t half = Select(magnitude > kFloatInfinity, nan, normal);
  half = Select(magnitude < kHalfMinNormal, subnormal, half);
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

// Returns bits, because a float may lose the payload of a NaN when it passes through a register.
inline uint32_t BitsOfFloat16(uint16_t half) {
  const uint32_t shifted = static_cast<uint32_t>(half & 0x7FFF) << 13;
  const uint32_t normal = shifted + kBiasChange;
  const uint32_t not_finite = normal + kBiasChange;
  const uint32_t subnormal = BitsOf(FloatOf(normal + kExponentOne) - FloatOf(kHalfMinNormal));
  uint32_t bits = Select(shifted >= 31 * kExponentOne, not_finite, normal);
  bits = Select(shifted < kExponentOne, subnormal, bits);
  return bits | static_cast<uint32_t>(half & 0x8000) << 16;
}

template <typename T>
inline T Load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

}  // namespace

TSPS_SIMD_CLONES
void FloatsToBfloat16(const float* __restrict__ values, size_t n, uint8_t* __restrict__ out) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t narrow = Bfloat16Of(values[i]);
    std::memcpy(out + 2 * i, &narrow, sizeof(narrow));
  }
}

TSPS_SIMD_CLONES
void FloatsToFloat16(const float* __restrict__ values, size_t n, uint8_t* __restrict__ out) {
  for (size_t i = 0; i < n; ++i) {
    const uint16_t narrow = Float16Of(values[i]);
    std::memcpy(out + 2 * i, &narrow, sizeof(narrow));
  }
}

TSPS_SIMD_CLONES
void Bfloat16ToFloats(const uint8_t* __restrict__ narrow, size_t n, float* __restrict__ values) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(narrow + 2 * i)) << 16;
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
}

TSPS_SIMD_CLONES
void Float16ToFloats(const uint8_t* __restrict__ narrow, size_t n, float* __restrict__ values) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = BitsOfFloat16(Load<uint16_t>(narrow + 2 * i));
    std::memcpy(&values[i], &bits, sizeof(bits));
  }
}

}  // namespace tsps
