#include "core/base/lane_sum.h"

#include <algorithm>
#include <cstring>

#include "core/base/crc32c.h"
#include "core/base/simd.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TSPS_HAS_AVX2_COPY
#endif

namespace tsps {
namespace {

TSPS_SIMD_CLONES
void Sum(const unsigned char* from, size_t n, uint64_t* __restrict__ a, uint64_t* __restrict__ b) {
  for (size_t i = 0; i < n; i += 32) {
    for (size_t k = 0; k < 4; ++k) {
      uint64_t word;
      std::memcpy(&word, from + i + 8 * k, sizeof(word));
      a[k] += word;
      b[k] += a[k];
    }
  }
}

#ifdef TSPS_HAS_AVX2_COPY
// `to` is aligned to 32 bytes.
__attribute__((target("avx2"))) void SumAndStream(const unsigned char* from, size_t n, uint64_t* a,
                                                  uint64_t* b, unsigned char* to) {
  __m256i sum = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
  for (size_t i = 0; i < n; i += 32) {
    const __m256i piece = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    sum = _mm256_add_epi64(sum, piece);
    sums = _mm256_add_epi64(sums, sum);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), piece);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(a), sum);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(b), sums);
}

bool CanStream() {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}
#endif

}  // namespace

void LaneSum::Add(const void* data, size_t n) {
  const auto* from = static_cast<const unsigned char*>(data);
  const size_t held = bytes_ % kPiece;
  if (held > 0) {
    const size_t missing = std::min(n, kPiece - held);
    std::memcpy(rest_ + held, from, missing);
    from += missing;
    n -= missing;
    bytes_ += missing;
    if (bytes_ % kPiece == 0) Sum(rest_, kPiece, a_, b_);
  }
  if (n == 0) return;
  const size_t whole = n / kPiece * kPiece;
  Sum(from, whole, a_, b_);
  std::memcpy(rest_, from + whole, n - whole);
  bytes_ += n;
}

void LaneSum::AddCopy(const void* data, size_t n, void* to) {
#ifdef TSPS_HAS_AVX2_COPY
  const bool aligned = (reinterpret_cast<uintptr_t>(to) | n | bytes_) % kPiece == 0;
  if (aligned && CanStream()) {
    SumAndStream(static_cast<const unsigned char*>(data), n, a_, b_,
                 static_cast<unsigned char*>(to));
    bytes_ += n;
    return;
  }
#endif
  std::memcpy(to, data, n);
  Add(to, n);
}

uint32_t LaneSum::Value() const {
  LaneSum whole = *this;
  while (whole.bytes_ % kPiece != 0) whole.Add("", 1);
  uint32_t crc = Crc32c(0, &bytes_, sizeof(bytes_));
  crc = Crc32c(crc, whole.a_, sizeof(whole.a_));
  return Crc32c(crc, whole.b_, sizeof(whole.b_));
}

}  // namespace tsps
