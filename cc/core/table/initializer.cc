#include "core/table/initializer.h"

#include <algorithm>
#include <cmath>

#include "core/base/simd.h"
#include "core/table/normal_quantile.h"
#include "core/table/philox.h"

namespace tsps {
namespace {

constexpr const char* kNames[] = {"zeros", "constant", "uniform", "normal", "truncated_normal"};
constexpr size_t kNameCount = sizeof(kNames) / sizeof(kNames[0]);

constexpr size_t kFloatsPerCall = 64;  // whole blocks of 4, in buffers on the stack
constexpr double kPhiOfMinus2 = 0.022750131948179207200;  // the normal distribution function at -2

// SplitMix64's finalizer (Steele et al., OOPSLA 2014), a bijection of 64-bit numbers.
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Writes uniform values from 24 bits, the precision of a float. They are scaled in double, because
// maxval - minval may overflow a float.
TSPS_SIMD_CLONES
void UniformFromWords(const InitializerConfig& config, float below_max, const uint32_t* words,
                      size_t n, float* row) {
  const double low = config.a, range = static_cast<double>(config.b) - config.a;
  for (size_t i = 0; i < n; ++i) {
    const double unit = static_cast<double>(static_cast<int32_t>(words[i] >> 8)) * 0x1p-24;
    const float value = static_cast<float>(low + unit * range);
    row[i] = value < below_max ? value : below_max;  // rounding may reach maxval, which is excluded
  }
}

// Writes q[i] = p - 1/2 for p = (word + 1/2) / 2^32, scaled by `width`, and its quantile z[i]. p is
// never 0 or 1.
TSPS_SIMD_CLONES
void CentralQuantiles(const uint32_t* words, size_t n, double width, double* q, double* z) {
  for (size_t i = 0; i < n; ++i) {
    // word - 2^31 as a signed number, because AVX2 cannot convert unsigned ones.
    const int32_t centered = static_cast<int32_t>(words[i] ^ 0x80000000u);
    q[i] = (static_cast<double>(centered) + 0.5) * 0x1p-32 * width;
    z[i] = CentralQuantile(q[i]);
  }
}

TSPS_SIMD_CLONES
void TailQuantiles(const double* q, size_t n, double* z) {
  for (size_t i = 0; i < n; ++i) z[i] = TailQuantile(q[i], 0.5 - std::abs(q[i]));
}

// Writes normal values from 32 bits each: with 24 bits no value would be farther from the mean than
// 5.4 stddev. The central formula is computed for all values, the tail formula for the gathered 15
// % that need it: 0.4 us for 64 floats. A branch per float takes 0.9 us.
void NormalFromWords(const InitializerConfig& config, const uint32_t* words, size_t n, float* row) {
  const bool truncated = config.kind == InitializerKind::kTruncatedNormal;
  double q[kFloatsPerCall], z[kFloatsPerCall], tail_q[kFloatsPerCall], tail_z[kFloatsPerCall];
  uint32_t tail_index[kFloatsPerCall];
  CentralQuantiles(words, n, truncated ? 1 - 2 * kPhiOfMinus2 : 1.0, q, z);
  size_t n_tail = 0;
  for (size_t i = 0; i < n; ++i) {
    tail_index[n_tail] = static_cast<uint32_t>(i);
    tail_q[n_tail] = q[i];
    n_tail += std::abs(q[i]) > kCentralQ;
  }
  TailQuantiles(tail_q, n_tail, tail_z);
  for (size_t i = 0; i < n_tail; ++i) z[tail_index[i]] = tail_z[i];
  const double mean = config.a, stddev = config.b;
  for (size_t i = 0; i < n; ++i) {
    const double bounded = truncated ? std::min(2.0, std::max(-2.0, z[i])) : z[i];
    row[i] = static_cast<float>(mean + stddev * bounded);
  }
}

}  // namespace

Result<InitializerKind> InitializerKindFromName(const std::string& name) {
  for (size_t i = 0; i < kNameCount; ++i) {
    if (name == kNames[i]) return static_cast<InitializerKind>(i);
  }
  return Error(
      Code::kInvalidArgument,
      "unknown initializer; expected zeros, constant, uniform, normal or truncated_normal. "
      "Received: '",
      name, "'");
}

const char* InitializerKindName(InitializerKind kind) {
  return static_cast<size_t>(kind) < kNameCount ? kNames[static_cast<size_t>(kind)] : "unknown";
}

Status ValidateInitializer(const InitializerConfig& config) {
  const char* name = InitializerKindName(config.kind);
  switch (config.kind) {
    case InitializerKind::kZeros:
      return Status();
    case InitializerKind::kConstant:
      if (std::isfinite(config.a)) return Status();
      return Error(Code::kInvalidArgument,
                   "initializer constant needs a finite value. Received: ", config.a);
    case InitializerKind::kUniform:
      if (std::isfinite(config.a) && std::isfinite(config.b) && config.a <= config.b)
        return Status();
      return Error(Code::kInvalidArgument,
                   "initializer uniform needs finite minval <= maxval. Received: minval=", config.a,
                   ", maxval=", config.b);
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      if (std::isfinite(config.a) && std::isfinite(config.b) && config.b >= 0) return Status();
      return Error(Code::kInvalidArgument, "initializer ", name,
                   " needs a finite mean and a finite stddev >= 0. Received: mean=", config.a,
                   ", stddev=", config.b);
  }
  return Error(Code::kInvalidArgument, "unknown initializer kind ",
               static_cast<uint32_t>(config.kind));
}

void InitialRow(const InitializerConfig& config, int64_t key, size_t dim, float* row) {
  InitialRows(config, &key, 1, dim, row);
}

// The counter of four floats is (key, block), so no two pairs (key, position) share one. The Philox
// key mixes seed and salt; it differs for any two salts of one seed. Short rows share a buffer, so
// that the vectors of a generator are full.
void InitialRows(const InitializerConfig& config, const int64_t* keys, size_t n, size_t dim,
                 float* rows) {
  if (config.kind == InitializerKind::kZeros || config.kind == InitializerKind::kConstant) {
    std::fill(rows, rows + n * dim, config.kind == InitializerKind::kZeros ? 0.0f : config.a);
    return;
  }
  const uint64_t philox_key = Mix(Mix(config.seed) ^ config.salt);
  const float below_max = config.a < config.b ? std::nextafter(config.b, config.a) : config.a;
  constexpr size_t kBlocks = kFloatsPerCall / 4;
  uint64_t block_keys[kBlocks], blocks[kBlocks];
  uint32_t words[kFloatsPerCall];
  const bool padded = dim % 4 != 0;  // the last block of a row has more floats than the row needs
  float values[kFloatsPerCall];
  float* next = rows;  // where the floats of the buffer belong
  size_t filled = 0;
  const auto flush = [&] {
    float* const to = padded ? values : next;
    PhiloxBlocks(static_cast<uint32_t>(philox_key), static_cast<uint32_t>(philox_key >> 32),
                 block_keys, blocks, filled, words);
    if (config.kind == InitializerKind::kUniform) {
      UniformFromWords(config, below_max, words, 4 * filled, to);
    } else {
      NormalFromWords(config, words, 4 * filled, to);
    }
    if (!padded) next += 4 * filled;
    for (size_t i = 0; padded && i < filled; ++i) {
      next = std::copy_n(values + 4 * i, std::min<size_t>(4, dim - 4 * blocks[i]), next);
    }
    filled = 0;
  };
  for (size_t i = 0; i < n; ++i) {
    for (size_t at = 0; at < dim; at += 4) {
      block_keys[filled] = static_cast<uint64_t>(keys[i]);
      blocks[filled] = at / 4;
      if (++filled == kBlocks) flush();
    }
  }
  if (filled > 0) flush();
}

}  // namespace tsps
