#include "core/serving/serving_lookup.h"

#include <algorithm>
#include <cstring>

#include "core/base/hash.h"
#include "core/base/simd.h"
#include "core/base/stream_copy.h"
#include "core/serving/key_filter.h"

#if defined(TSPS_HAS_AVX2)
#include <immintrin.h>
#endif

namespace tsps {
namespace {

constexpr size_t kLookAhead = 16;  // keys between the stages of a lookup; a power of 2

// The state of a key between the stages.
struct InFlight {
  uint64_t hash[kLookAhead];
  uint32_t layers[kLookAhead];  // bits of the layers that may have the key
  const char* row[kLookAhead];  // null: no row
};

// Prefetches the lines of a row, up to 512 bytes, into the second-level cache. The first-level
// cache takes few requests at a time, and would delay those for buckets.
inline void PrefetchRow(const char* row, size_t bytes) {
  const size_t end = std::min<size_t>(bytes, 512);
  for (size_t at = 0; at < end; at += 64) __builtin_prefetch(row + at, 0, 2);
  __builtin_prefetch(row + end - 1, 0, 2);
}

inline void CopyRow(RowCode code, const char* coded, size_t dim, bool stream, float* row) {
  if (code != RowCode::kFloat32) return DecodeRow(code, coded, dim, row);
  if (stream) return StreamCopy(row, coded, dim * sizeof(float));
  std::memcpy(row, coded, dim * sizeof(float));
}

// The loop is compiled for two sets of instructions, in two namespaces.

namespace portable {
inline unsigned EqualKeys(const Bucket& bucket, int64_t key) {
  unsigned equal = 0;
  for (unsigned place = 0; place < Bucket::kKeys; ++place) {
    equal |= static_cast<unsigned>(bucket.keys[place] == key) << place;
  }
  return equal & bucket.used();
}
inline bool MayHave(const FilterBlock& block, uint64_t hash) { return FilterHas(block, hash); }
#include "core/serving/serving_lookup_loop.inc"
}  // namespace portable

#if defined(TSPS_HAS_AVX2)
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt")
namespace avx2 {
inline unsigned EqualKeys(const Bucket& bucket, int64_t key) {
  const __m256i wanted = _mm256_set1_epi64x(key);
  const auto* const words = reinterpret_cast<const __m256i*>(&bucket);
  const __m256i low = _mm256_cmpeq_epi64(_mm256_loadu_si256(words), wanted);
  const __m256i high = _mm256_cmpeq_epi64(_mm256_loadu_si256(words + 1), wanted);
  const auto bits = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(low))) |
                    static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(high))) << 4;
  return bits >> 1 & bucket.used();  // the first word is no key
}
inline bool MayHave(const FilterBlock& block, uint64_t hash) {
  const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFilterOdd));
  const __m256i product = _mm256_mullo_epi32(_mm256_set1_epi32(static_cast<int>(hash)), odd);
  const __m256i mask = _mm256_sllv_epi32(_mm256_set1_epi32(1), _mm256_srli_epi32(product, 27));
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&block));
  return _mm256_testc_si256(words, mask) != 0;
}
#include "core/serving/serving_lookup_loop.inc"
}  // namespace avx2
#pragma GCC pop_options
#endif

FileIndex IndexOf(const ServingFile& file) {
  const ServingHeader& header = file.header();
  FileIndex index;
  index.buckets = file.buckets();
  index.homes = header.homes;
  index.last_bucket = header.n_buckets - 1;
  index.rows = file.rows();
  index.n_rows = header.n_rows;
  index.filter = header.is_layer == 1 ? file.filter() : nullptr;
  index.filter_blocks = header.filter_blocks;
  return index;
}

}  // namespace

FileStack::FileStack(const std::vector<std::shared_ptr<const ServingFile>>& files)
    : code(files.front()->row_code()),
      dim(files.front()->header().dim),
      row_bytes(static_cast<size_t>(files.front()->header().row_bytes)),
      hash_seed(files.front()->header().hash_seed),
      base(IndexOf(*files.back())) {
  for (size_t i = 0; i + 1 < files.size(); ++i) layers.push_back(IndexOf(*files[i]));
  for (size_t begin = 0; begin < layers.size();) {
    const ServingHeader& header = files[begin]->header();
    LayerGroup group{files[begin]->filter(), header.filter_blocks, begin, begin + 1};
    size_t end = begin + 1;
    while (header.cover_blocks > 0 && end < layers.size() &&
           files[end]->header().first_sequence >= header.cover_from) {
      ++end;
    }
    if (end > begin + 1) group = {files[begin]->cover(), header.cover_blocks, begin, end};
    groups.push_back(group);
    begin = end;
  }
}

void LookUpRange(const FileStack& stack, const int64_t* keys, size_t n, bool stream, float* rows,
                 LookupResult* result) {
#if defined(TSPS_HAS_AVX2)
  static const bool fast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  if (fast) {
    return stack.layers.empty() ? avx2::Loop<false>(stack, keys, n, stream, rows, result)
                                : avx2::Loop<true>(stack, keys, n, stream, rows, result);
  }
#endif
  return stack.layers.empty() ? portable::Loop<false>(stack, keys, n, stream, rows, result)
                              : portable::Loop<true>(stack, keys, n, stream, rows, result);
}

}  // namespace tsps
