// The inverse of the normal distribution function, bit-identical everywhere.
//
// Algorithm AS 241, PPND16 (Wichura, "The Percentage Points of the Normal Distribution", Applied
// Statistics 37, 1988): relative accuracy 1e-16. Its logarithm is fdlibm's e_log.c (Sun
// Microsystems, 1993) for normal positive arguments, kept here because libm's differs between
// versions.
#ifndef TFSPS_CORE_NORMAL_QUANTILE_H_
#define TFSPS_CORE_NORMAL_QUANTILE_H_

namespace tsps {

// The quantile for p = 0.5 + q when |q| <= kCentralQ; anything, without a trap, beyond.
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

// The quantile for p = 0.5 + q, kCentralQ < |q| < 0.5; `tail` is min(p, 1 - p), passed so that it
// is exact.
double TailQuantile(double q, double tail);

}  // namespace tsps

#endif  // TFSPS_CORE_NORMAL_QUANTILE_H_
