// Floats of 16 bits, and what they stand for.
//
// Narrowing rounds to nearest, ties to even. Infinities and the signs of zeros stay; a NaN stays a
// NaN, quiet, with the leading bits of its payload. What is beyond the largest finite number by
// half a unit of its last place or more becomes an infinity: from 65520 on in float16. Numbers
// below 2^-14 lose bits in float16, and below 2^-25 become zeros; bfloat16 has float32's range.
// Widening is exact.
#ifndef TFSPS_CORE_BASE_FLOAT16_H_
#define TFSPS_CORE_BASE_FLOAT16_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// n numbers of 16 bits, little-endian; they need not be aligned.
// bfloat16: float32's 8 bits of exponent, 7 of fraction.
void FloatsToBfloat16(const float* values, size_t n, uint8_t* out);
void Bfloat16ToFloats(const uint8_t* narrow, size_t n, float* values);
// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
void FloatsToFloat16(const float* values, size_t n, uint8_t* out);
void Float16ToFloats(const uint8_t* narrow, size_t n, float* values);

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_FLOAT16_H_
