// The inverse of the normal distribution function, with the same bits on every machine.
//
// The algorithm is AS 241, PPND16 (Wichura, "The Percentage Points of the Normal Distribution",
// Applied Statistics 37, 1988), with a relative accuracy of 1e-16. Its logarithm is fdlibm's
// e_log.c (Sun Microsystems, 1993) for normal positive arguments. It is implemented here, because
// results of libm differ between versions.
#ifndef TFSPS_CORE_TABLE_NORMAL_QUANTILE_H_
#define TFSPS_CORE_TABLE_NORMAL_QUANTILE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tsps {

// Returns the quantile for p = 0.5 + q if |q| <= kCentralQ. For other q it returns any value,
// without a trap.
constexpr double kCentralQ = 0.425;
inline double CentralQuantile(double q) {
  const double r = kCentralQ * kCentralQ - q * q;
  const double numerator =
      (((((((2509.0809287301226727 * r + 33430.575583588128105) * r + 67265.770927008700853) * r +
           45921.953931549871457) *
              r +
          13731.693765509461125) *
             r +
         1971.5909503065514427) *
            r +
        133.14166789178437745) *
           r +
       3.387132872796366608);
  const double denominator =
      (((((((5226.495278852545925 * r + 28729.085735721942674) * r + 39307.89580009271061) * r +
           21213.794301586595867) *
              r +
          5394.1960214247511077) *
             r +
         687.1870074920579083) *
            r +
        42.313330701600911252) *
           r +
       1.0);
  return q * numerator / denominator;
}

// Returns the natural logarithm of a normal positive double.
inline double Log(double x) {
  // x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  // 2^52 + exponent, as the bits of a double: every instruction set has this conversion for
  // vectors.
  const uint64_t exponent_bits = (bits >> 52) | 0x4330000000000000u;
  const uint64_t mantissa_bits = (bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u;
  double exponent, m;
  std::memcpy(&exponent, &exponent_bits, sizeof(exponent));
  std::memcpy(&m, &mantissa_bits, sizeof(m));
  const bool halve = m >= 1.4142135623730951;
  const double k = exponent - (0x1p52 + 1023) + (halve ? 1.0 : 0.0);
  const double f = (halve ? m * 0.5 : m) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 +
                           w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 +
                               w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * f * f;
  const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  return k * ln2_high - ((half_square - (s * (half_square + even + odd) + k * ln2_low)) - f);
}

// Returns the quantile for p = 0.5 + q, where kCentralQ < |q| < 0.5. `tail` is min(p, 1 - p); the
// caller passes it because it is exact. It must be at least 2^-33, half a step of 32 random bits:
// below 1.4e-11 AS 241 has a third formula.
inline double TailQuantile(double q, double tail) {
  const double r = std::sqrt(-Log(tail)) - 1.6;
  const double z = (((((((7.7454501427834140764e-4 * r + 0.0227238449892691845833) * r +
                         0.24178072517745061177) *
                            r +
                        1.27045825245236838258) *
                           r +
                       3.64784832476320460504) *
                          r +
                      5.7694972214606914055) *
                         r +
                     4.6303378461565452959) *
                        r +
                    1.42343711074968357734) /
                   (((((((1.05075007164441684324e-9 * r + 5.475938084995344946e-4) * r +
                         0.0151986665636164571966) *
                            r +
                        0.14810397642748007459) *
                           r +
                       0.68976733498510000455) *
                          r +
                      1.6763848301838038494) *
                         r +
                     2.05319162663775882187) *
                        r +
                    1.0);
  return q < 0 ? -z : z;
}

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_NORMAL_QUANTILE_H_
