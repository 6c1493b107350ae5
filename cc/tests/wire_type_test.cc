#include "core/wire/wire_type.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tsps {
namespace {

struct Format {
  WireType type;
  int exponent_bits, fraction_bits;

  int min_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
  int infinity() const { return ((1 << exponent_bits) - 1) << fraction_bits; }
};
constexpr Format kBfloat16 = {WireType::kBfloat16, 8, 7};
constexpr Format kFloat16 = {WireType::kFloat16, 5, 10};

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounds a value that is not a NaN, by the definition: to the nearest multiple of the unit of the
// last place. The hidden bit adds one to the exponent's field, and so does rounding up to the next
// power of two.
uint16_t NarrowedByDefinition(const Format& format, float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | format.infinity());
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent());
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const int code =
      ((exponent - format.min_exponent()) << format.fraction_bits) + static_cast<int>(units);
  return static_cast<uint16_t>(sign | std::min(code, format.infinity()));
}

double WidenedByDefinition(const Format& format, uint16_t code) {
  const int magnitude = code & 0x7FFF;
  const int field = magnitude >> format.fraction_bits;
  const int fraction = magnitude & ((1 << format.fraction_bits) - 1);
  const double sign = code & 0x8000 ? -1 : 1;
  if (magnitude == format.infinity()) return sign * std::numeric_limits<double>::infinity();
  if (field == 0) {
    return sign * std::ldexp(fraction, format.min_exponent() - format.fraction_bits);
  }
  return sign * std::ldexp(fraction + (1 << format.fraction_bits),
                           format.min_exponent() + field - 1 - format.fraction_bits);
}

std::vector<uint16_t> Narrowed(WireType type, const std::vector<float>& values) {
  std::vector<uint16_t> codes(values.size());
  NarrowFloats(type, values.data(), values.size(), reinterpret_cast<uint8_t*>(codes.data()));
  return codes;
}

std::vector<float> Widened(WireType type, const std::vector<uint16_t>& codes) {
  std::vector<float> values(codes.size());
  WidenFloats(type, reinterpret_cast<const uint8_t*>(codes.data()), codes.size(), values.data());
  return values;
}

std::vector<uint16_t> AllCodes() {
  std::vector<uint16_t> codes(1 << 16);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  return codes;
}

class WireTypes : public ::testing::TestWithParam<Format> {};

TEST_P(WireTypes, WidensEveryNumberExactlyAndBack) {
  const Format format = GetParam();
  const std::vector<uint16_t> codes = AllCodes();
  const std::vector<float> values = Widened(format.type, codes);
  const std::vector<uint16_t> back = Narrowed(format.type, values);
  for (size_t i = 0; i < codes.size(); ++i) {
    if ((codes[i] & 0x7FFF) > format.infinity()) {
      ASSERT_TRUE(std::isnan(values[i])) << i;
      // A signalling NaN becomes a quiet one.
      ASSERT_EQ(back[i], codes[i] | 1 << (format.fraction_bits - 1));
    } else {
      ASSERT_EQ(static_cast<double>(values[i]), WidenedByDefinition(format, codes[i])) << i;
      ASSERT_EQ(back[i], codes[i]);
    }
  }
}

TEST_P(WireTypes, RoundToNearestEvenAroundEveryTieAndAnywhere) {
  const Format format = GetParam();
  std::vector<float> values;
  // The middle between any two adjacent numbers, and both neighbours of the middle. The last middle
  // is between the largest finite number and the number that would follow it.
  for (int code = 0; code < format.infinity(); ++code) {
    const auto at = [&](int c) { return WidenedByDefinition(format, static_cast<uint16_t>(c)); };
    const double next = code + 1 == format.infinity() ? 2 * at(code) - at(code - 1) : at(code + 1);
    const float middle = static_cast<float>((at(code) + next) / 2);
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e38f)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  std::mt19937 random(1);
  while (values.size() % 1000000 != 0) {
    const float any = FloatOf(static_cast<uint32_t>(random()));
    if (!std::isnan(any)) values.push_back(any);
  }
  for (const float x : {0.0f, -0.0f, 1e-45f, FLT_MIN, FLT_MAX, -FLT_MAX, HUGE_VALF, -HUGE_VALF}) {
    values.push_back(x);
  }
  const std::vector<uint16_t> codes = Narrowed(format.type, values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(codes[i], NarrowedByDefinition(format, values[i])) << values[i];
  }
}

TEST_P(WireTypes, KeepNansAndTheirSigns) {
  const Format format = GetParam();
  std::vector<float> values;
  for (const uint32_t payload : {1u, 0x1FFFu, 0xFFFFu, 0x3FFFFFu, 0x400000u, 0x7FFFFFu}) {
    values.push_back(FloatOf(0x7F800000 | payload));
    values.push_back(FloatOf(0xFF800000 | payload));
  }
  const std::vector<uint16_t> codes = Narrowed(format.type, values);
  for (size_t i = 0; i < codes.size(); ++i) {
    EXPECT_GT(codes[i] & 0x7FFF, format.infinity()) << i;
    EXPECT_EQ(codes[i] >> 15, i % 2);
  }
}

INSTANTIATE_TEST_SUITE_P(, WireTypes, ::testing::Values(kBfloat16, kFloat16),
                         [](const auto& info) { return WireTypeName(info.param.type); });

TEST(WireType, Float16OverflowsWhereIeeeSays) {
  EXPECT_EQ(Narrowed(WireType::kFloat16, {65504, 65519.996f, 65520, -65520, 1e38f}),
            (std::vector<uint16_t>{0x7BFF, 0x7BFF, 0x7C00, 0xFC00, 0x7C00}));
  EXPECT_EQ(Narrowed(WireType::kFloat16, {0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x3p-26f}),
            (std::vector<uint16_t>{1, 0, 1, 1}));
  EXPECT_EQ(Narrowed(WireType::kBfloat16, {0x1.FEp127f, 0x1.FEFFFEp127f, 0x1.FFp127f}),
            (std::vector<uint16_t>{0x7F7F, 0x7F7F, 0x7F80}));
}

TEST(WireType, ConvertsAnyLengthAtAnyAddressAndNothingBeyond) {
  std::mt19937 random(2);
  for (const WireType type : {WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16}) {
    const size_t bytes = WireTypeBytes(type);
    for (size_t n = 0; n < 80; ++n) {
      for (size_t offset = 0; offset < 4; ++offset) {
        std::vector<float> values(n);
        for (float& x : values) x = static_cast<float>(random() % 2048) - 1024;
        std::vector<uint8_t> wire(offset + n * bytes + 1, 0xAB);
        NarrowFloats(type, values.data(), n, wire.data() + offset);
        EXPECT_EQ(wire.back(), 0xAB);
        std::vector<float> back(n + 1, 99.5f);
        WidenFloats(type, wire.data() + offset, n, back.data());
        EXPECT_EQ(back.back(), 99.5f);
        back.pop_back();
        if (type == WireType::kBfloat16) {  // it has 8 bits for such numbers
          for (size_t i = 0; i < n; ++i) EXPECT_NEAR(values[i], back[i], 2);
        } else {
          EXPECT_EQ(values, back);
        }
      }
    }
  }
}

TEST(WireType, Float32KeepsEveryBit) {
  std::vector<uint32_t> bits = {0, 0x80000000, 1, 0x7F800001, 0xFFC12345, 0x7FBFFFFF, 0xFF800000};
  std::vector<uint32_t> back(bits.size());
  std::vector<uint8_t> wire(bits.size() * 4);
  NarrowFloats(WireType::kFloat32, reinterpret_cast<const float*>(bits.data()), bits.size(),
               wire.data());
  WidenFloats(WireType::kFloat32, wire.data(), bits.size(), reinterpret_cast<float*>(back.data()));
  EXPECT_EQ(bits, back);
}

#if defined(__x86_64__)
TEST(WireType, DoesNotDependOnTheThreadsFlushingOfSubnormals) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x47900000; bits += 4099) values.push_back(FloatOf(bits));
  for (const WireType type : {WireType::kBfloat16, WireType::kFloat16}) {
    const std::vector<uint16_t> codes = Narrowed(type, values);
    const std::vector<float> back = Widened(type, AllCodes());
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040);  // flush-to-zero and denormals-are-zero, as TensorFlow
    const std::vector<uint16_t> flushed_codes = Narrowed(type, values);
    const std::vector<float> flushed_back = Widened(type, AllCodes());
    __builtin_ia32_ldmxcsr(mode);
    EXPECT_EQ(codes, flushed_codes);
    EXPECT_EQ(std::memcmp(back.data(), flushed_back.data(), back.size() * sizeof(float)), 0);
  }
}
#endif

TEST(WireType, HasNames) {
  for (const WireType type : {WireType::kFloat32, WireType::kBfloat16, WireType::kFloat16}) {
    EXPECT_EQ(*WireTypeFromName(WireTypeName(type)), type);
  }
  const Status status = WireTypeFromName("float8").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("'float8'"), std::string::npos);
}

}  // namespace
}  // namespace tsps
