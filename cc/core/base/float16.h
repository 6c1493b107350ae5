// Conversions between float32 and 16-bit floats.
//
// Narrowing rounds to nearest, ties to even. It keeps infinities and the signs of zeros. A NaN
// becomes a quiet NaN with the leading bits of its payload. A number that exceeds the largest
// finite one by half a unit of its last place or more becomes an infinity; in float16 these are
// numbers from 65520 on. In float16, numbers below 2^-14 lose bits, and numbers below 2^-25 become
// zeros; bfloat16 has float32's range. Widening is exact.
#ifndef TFSPS_CORE_BASE_FLOAT16_H_
#define TFSPS_CORE_BASE_FLOAT16_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

// Each function converts n numbers. 16-bit numbers are little-endian and need not be aligned.
//
// bfloat16 has float32's 8 exponent bits, and 7 fraction bits.
void FloatsToBfloat16(const float* values, size_t n, uint8_t* out);
void Bfloat16ToFloats(const uint8_t* narrow, size_t n, float* values);
// float16 is IEEE 754 binary16: 5 exponent bits and 10 fraction bits.
void FloatsToFloat16(const float* values, size_t n, uint8_t* out);
void Float16ToFloats(const uint8_t* narrow, size_t n, float* values);

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_FLOAT16_H_
