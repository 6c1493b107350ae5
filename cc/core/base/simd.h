// TSPS_SIMD_CLONES compiles a function for AVX-512, AVX2 and the baseline; the loader chooses one
// of them. AVX-512 means x86-64-v4, which has operations on 16-bit numbers: without them, rounding
// takes two to five times as long. GCC knows this name since version 12.
//
// All clones must compute the same bits. So loops with this mark use only IEEE add, multiply,
// divide and sqrt, element by element (no reassociated sums), and the build passes
// -ffp-contract=off: with contraction, clones that have FMA would round differently. The build also
// passes -fno-math-errno. Without it, GCC calls sqrtf for negative arguments and vectorizes no loop
// that contains the call: an Adagrad row of 64 floats then takes 132 ns instead of 9. A function
// attribute or pragma has no effect, because GCC fixes the properties of builtins when it starts.
// Values do not change.
#ifndef TFSPS_CORE_BASE_SIMD_H_
#define TFSPS_CORE_BASE_SIMD_H_

#include <cstddef>  // defines __GLIBC__ if the C library is glibc

#if defined(__GNUC__) && __GNUC__ >= 12
#define TSPS_AVX512 "arch=x86-64-v4"
#else
#define TSPS_AVX512 "avx512f"
#endif

// Test builds have one clone alone, whatever the processor is (make simd).
#if defined(TFSPS_SIMD_BASELINE)
#define TSPS_SIMD_CLONES
#elif defined(TFSPS_SIMD_AVX2)
#define TSPS_SIMD_CLONES __attribute__((target("avx2")))
#elif defined(TFSPS_SIMD_AVX512)
#define TSPS_SIMD_CLONES __attribute__((target(TSPS_AVX512)))
// The ifunc resolvers of the clones run before the sanitizers' runtimes are ready, and would crash.
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TSPS_SIMD_CLONES __attribute__((target_clones(TSPS_AVX512, "avx2", "default")))
#else
#define TSPS_SIMD_CLONES
#endif

// Some loops are written by hand for AVX2 and AVX-512, with `#pragma GCC target`. They check the
// processor, and have a portable equivalent with the same bits.
#if defined(__x86_64__) && !defined(TFSPS_SIMD_BASELINE)
#define TSPS_HAS_AVX2 1
#if defined(TFSPS_SIMD_AVX2)
#define TSPS_HAS_AVX512 false
#else
#define TSPS_HAS_AVX512 true
#endif
#endif

#endif  // TFSPS_CORE_BASE_SIMD_H_
