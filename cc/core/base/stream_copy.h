// Copies that bypass the caches. They serve outputs so large that the caches would drop their
// beginning before anybody reads it, and would lose what is read at the same time.
#ifndef TFSPS_CORE_BASE_STREAM_COPY_H_
#define TFSPS_CORE_BASE_STREAM_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/base/float16.h"
#include "core/base/racy_copy.h"

namespace tsps {

// The size from which outputs are copied in this way: several times a core's own cache.
constexpr size_t kStreamedBytes = 16u << 20;

// Returns whether StreamCopy can write pieces of `bytes` one after another from `to` on.
inline bool CanStream(const void* to, size_t bytes) {
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
  return reinterpret_cast<uintptr_t>(to) % 16 == 0 && bytes % 16 == 0;
#else
  static_cast<void>(to);
  static_cast<void>(bytes);
  return false;
#endif
}

// Copies as RacyRead. Requires CanStream(to, bytes).
inline void StreamCopy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
  const char* const source = static_cast<const char*>(from);
  char* const target = static_cast<char*>(to);
  for (size_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
  }
#else
  RacyRead(to, from, bytes);
#endif
}

// Writes the floats of n bfloat16 numbers. Requires CanStream(to, n * sizeof(float)).
inline void StreamBfloat16(float* to, const void* from, size_t n) {
#if defined(__SSE2__)
  const auto* const source = static_cast<const uint16_t*>(from);
  const __m128i zeros = _mm_setzero_si128();  // the lower halves of the floats
  for (size_t i = 0; i < n; i += 4) {
    const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_unpacklo_epi16(zeros, four));
  }
#else
  Bfloat16ToFloats(static_cast<const uint8_t*>(from), n, to);
#endif
}

// Makes the copies visible. Call it before other threads read them.
inline void StreamFence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_STREAM_COPY_H_
