#include "core/table/row_type.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/float16.h"
#include "core/base/float_bits.h"
#include "core/base/hash.h"
#include "core/base/simd.h"

namespace tsps {
namespace {

constexpr uint32_t kInfiniteBfloat16 = 0x7F80;
constexpr uint32_t kInfiniteFloat16 = 0x7C00;
// The smallest normal float16 is 2^-14; subnormal ones are multiples of 2^-24.
constexpr uint32_t kMinNormal = BitsOfPower(-14);
constexpr uint32_t kBiasChange = (kFloatBias - 15) << kFloatFractionBits;

// Replaces each infinity that rounding has made by the largest finite number.
TSPS_SIMD_CLONES
void KeepFinite(const float* __restrict__ values, size_t n, uint32_t infinite,
                uint16_t* __restrict__ row) {
  for (size_t i = 0; i < n; ++i) {
    const bool overflowed =
        (row[i] & 0x7FFFu) == infinite && (BitsOf(values[i]) & kFloatMagnitude) < kFloatInfinity;
    row[i] = static_cast<uint16_t>(row[i] - static_cast<uint16_t>(overflowed));
  }
}

// Returns 32 random bits for element i. This is MurmurHash3's 32-bit finalizer with the upper half
// of the draw mixed in, so that two draws that differ there are independent.
inline uint32_t ElementDraw(uint32_t low, uint32_t high, uint32_t i) {
  uint32_t x = low + i * 0x9E3779B9u;
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= high;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

// Returns a rounded magnitude with the sign of `bits`. Finite numbers stay finite, NaNs become
// quiet.
inline uint16_t Finish(uint32_t bits, uint32_t rounded, uint32_t infinite) {
  const uint32_t magnitude = bits & kFloatMagnitude;
  const uint32_t finite = rounded < infinite ? rounded : infinite - 1;
  const uint32_t special = magnitude > kFloatInfinity ? infinite | infinite >> 1 : infinite;
  const uint32_t narrow = magnitude < kFloatInfinity ? finite : special;
  return static_cast<uint16_t>(narrow | (bits >> 16 & 0x8000));
}

TSPS_SIMD_CLONES
void StochasticBfloat16(const float* __restrict__ values, size_t n, uint32_t low, uint32_t high,
                        uint16_t* __restrict__ row) {
  const auto count = static_cast<uint32_t>(n);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(values[i]);
    const uint32_t rounded = ((bits & kFloatMagnitude) + (ElementDraw(low, high, i) >> 16)) >> 16;
    row[i] = Finish(bits, rounded, kInfiniteBfloat16);
  }
}

// Magnitudes have units of 2^-13 of a float16's last place, so the draw has 13 bits, too.
TSPS_SIMD_CLONES
void StochasticFloat16(const float* __restrict__ values, size_t n, uint32_t low, uint32_t high,
                       uint16_t* __restrict__ row) {
  const auto count = static_cast<uint32_t>(n);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(values[i]);
    const uint32_t magnitude = bits & kFloatMagnitude;
    const bool subnormal = magnitude < kMinNormal;
    const float units = FloatOf(subnormal ? magnitude : 0) * 0x1p37f;
    const uint32_t fixed =
        subnormal ? static_cast<uint32_t>(static_cast<int32_t>(units)) : magnitude - kBiasChange;
    const uint32_t rounded = (fixed + (ElementDraw(low, high, i) >> 19)) >> 13;
    row[i] = Finish(bits, rounded, kInfiniteFloat16);
  }
}

}  // namespace

Result<Rounding> RoundingFromName(const std::string& name) {
  for (const Rounding rounding : {Rounding::kStochastic, Rounding::kNearest}) {
    if (name == RoundingName(rounding)) return rounding;
  }
  return Error(Code::kInvalidArgument,
               "unknown rounding; expected stochastic or nearest. Received: '", name, "'");
}

const char* RoundingName(Rounding rounding) {
  return rounding == Rounding::kNearest ? "nearest" : "stochastic";
}

bool IsRowType(PlaneType type) {
  return type == PlaneType::kFloat32 || type == PlaneType::kBfloat16 || type == PlaneType::kFloat16;
}

void WidenRow(PlaneType type, const void* row, size_t n, float* values) {
  const auto* const narrow = static_cast<const uint8_t*>(row);
  if (type == PlaneType::kBfloat16) {
    Bfloat16ToFloats(narrow, n, values);
  } else if (type == PlaneType::kFloat16) {
    Float16ToFloats(narrow, n, values);
  } else {
    std::memcpy(values, row, n * sizeof(float));
  }
}

void ReadNarrowRow(PlaneType type, const void* row, size_t n, bool stream, float* values) {
  if (stream && type == PlaneType::kBfloat16) return StreamBfloat16(values, row, n);
  constexpr size_t kChunk = 256;
  uint16_t scratch[kChunk];
  alignas(64) float wide[kChunk];
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t m = std::min(kChunk, n - begin);
    const void* const stored =
        RacyView(static_cast<const uint16_t*>(row) + begin, m * sizeof(uint16_t), scratch);
    WidenRow(type, stored, m, stream ? wide : values + begin);
    if (stream) StreamCopy(values + begin, wide, m * sizeof(float));
  }
}

void NarrowRow(PlaneType type, const float* values, size_t n, void* row) {
  auto* const narrow = static_cast<uint8_t*>(row);
  if (type == PlaneType::kBfloat16) {
    FloatsToBfloat16(values, n, narrow);
    KeepFinite(values, n, kInfiniteBfloat16, static_cast<uint16_t*>(row));
  } else if (type == PlaneType::kFloat16) {
    FloatsToFloat16(values, n, narrow);
    KeepFinite(values, n, kInfiniteFloat16, static_cast<uint16_t*>(row));
  } else {
    std::memcpy(row, values, n * sizeof(float));
  }
}

void NarrowRowStochastically(PlaneType type, const float* values, size_t n, uint64_t draw,
                             void* row) {
  const auto low = static_cast<uint32_t>(draw), high = static_cast<uint32_t>(draw >> 32);
  if (type == PlaneType::kBfloat16) {
    StochasticBfloat16(values, n, low, high, static_cast<uint16_t*>(row));
  } else if (type == PlaneType::kFloat16) {
    StochasticFloat16(values, n, low, high, static_cast<uint16_t*>(row));
  } else {
    std::memcpy(row, values, n * sizeof(float));
  }
}

uint64_t RowDraw(const InitializerConfig& table, int64_t key, uint64_t step) {
  // Nested hashes: if two draws differ in one argument only, they certainly differ.
  const uint64_t of_table =
      HashKey(static_cast<int64_t>(table.salt), HashKey(static_cast<int64_t>(table.seed), 0));
  return HashKey(static_cast<int64_t>(step), HashKey(key, of_table));
}

int64_t FirstBeyondRange(PlaneType type, const float* values, size_t n) {
  if (!IsNarrow(type)) return -1;
  // Values from here on round to infinity.
  const float limit = type == PlaneType::kFloat16 ? 65520.0f : FloatOf(0x7F7F8000);
  for (size_t i = 0; i < n; ++i) {
    if (std::abs(values[i]) >= limit && std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace tsps
