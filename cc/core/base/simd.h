// TSPS_SIMD_CLONES: compiles a function for AVX-512, AVX2 and the baseline; the loader picks one.
// AVX-512 is that of x86-64-v4, with operations on 16-bit numbers: roundings take twice to five
// times as long without. GCC knows the name since version 12.
//
// All clones must give the same bits, so loops marked with it use only IEEE add, multiply, divide
// and sqrt, element by element (no reassociated sums), and the build passes -ffp-contract=off: with
// contraction the clones that have FMA would round differently. It also passes -fno-math-errno,
// without which GCC keeps a call to sqrtf for negative arguments and vectorizes no loop that holds
// one: an Adagrad row of 64 floats takes 132 ns instead of 9. A function attribute or pragma does
// not help, the builtin's properties are fixed at the start. Values do not change.
#ifndef TFSPS_CORE_BASE_SIMD_H_
#define TFSPS_CORE_BASE_SIMD_H_

#include <cstddef>  // defines __GLIBC__ where there is one

#if defined(__GNUC__) && __GNUC__ >= 12
#define TSPS_AVX512 "arch=x86-64-v4"
#else
#define TSPS_AVX512 "avx512f"
#endif

// A build for tests has one of the clones alone, whatever the processor: make simd.
#if defined(TFSPS_SIMD_BASELINE)
#define TSPS_SIMD_CLONES
#elif defined(TFSPS_SIMD_AVX2)
#define TSPS_SIMD_CLONES __attribute__((target("avx2")))
#elif defined(TFSPS_SIMD_AVX512)
#define TSPS_SIMD_CLONES __attribute__((target(TSPS_AVX512)))
// The ifunc resolvers behind the clones run before the sanitizers' runtimes are ready, and crash.
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TSPS_SIMD_CLONES __attribute__((target_clones(TSPS_AVX512, "avx2", "default")))
#else
#define TSPS_SIMD_CLONES
#endif

#endif  // TFSPS_CORE_BASE_SIMD_H_
