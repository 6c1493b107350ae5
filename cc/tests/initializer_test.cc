#include "core/table/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "core/table/normal_quantile.h"
#include "core/table/philox.h"

namespace tsps {
namespace {

InitializerConfig Config(InitializerKind kind, float a, float b, uint64_t seed = 7,
                         uint64_t salt = 3) {
  InitializerConfig config;
  config.kind = kind;
  config.a = a;
  config.b = b;
  config.seed = seed;
  config.salt = salt;
  return config;
}

std::vector<float> Row(const InitializerConfig& config, int64_t key, size_t dim) {
  std::vector<float> row(dim, -777.0f);
  InitialRow(config, key, dim, row.data());
  return row;
}

// 400 rows of 64 floats.
std::vector<float> Sample(const InitializerConfig& config) {
  std::vector<float> sample;
  for (int64_t key = 0; key < 400; ++key) {
    const std::vector<float> row = Row(config, key * 1000003 - 77, 64);
    sample.insert(sample.end(), row.begin(), row.end());
  }
  return sample;
}

std::pair<double, double> MeanAndStddev(const std::vector<float>& sample) {
  double sum = 0, square = 0;
  for (float x : sample) sum += x;
  const double mean = sum / sample.size();
  for (float x : sample) square += (x - mean) * (x - mean);
  return {mean, std::sqrt(square / sample.size())};
}

double Phi(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Kolmogorov-Smirnov statistic times sqrt(n); above 1.95 one time in 1,000.
template <typename Cdf>
double KolmogorovSmirnov(std::vector<float> sample, Cdf cdf) {
  std::sort(sample.begin(), sample.end());
  const double n = static_cast<double>(sample.size());
  double distance = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double p = cdf(sample[i]);
    distance = std::max({distance, p - i / n, (i + 1) / n - p});
  }
  return distance * std::sqrt(n);
}

TEST(Philox, GivesThePublishedAnswers) {
  // "philox4x32 10" of Random123's kat_vectors.
  const struct {
    uint32_t counter[4], key[2], expected[4];
  } vectors[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& vector : vectors) {
    uint32_t words[4];
    std::copy(vector.counter, vector.counter + 4, words);
    Philox4x32x10(vector.key[0], vector.key[1], words);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words[i], vector.expected[i]);
  }
}

// Vectors of counters have the words of single ones, also where numbers exceed 32 bits.
TEST(Philox, BlocksEqualSingleOnes) {
  for (const size_t n : {1, 7, 8, 9, 16, 31, 40}) {
    std::vector<uint64_t> keys, blocks;
    for (uint64_t i = 0; i < n; ++i) {
      keys.push_back(i % 3 == 0 ? i : 0x8000000012345678 * (i + 1));
      blocks.push_back(i % 2 == 0 ? i : (uint64_t{1} << 32) - 3 + i);
    }
    std::vector<uint32_t> words(4 * n);
    PhiloxBlocks(11, 22, keys.data(), blocks.data(), n, words.data());
    for (size_t i = 0; i < n; ++i) {
      uint32_t single[4] = {static_cast<uint32_t>(keys[i]), static_cast<uint32_t>(keys[i] >> 32),
                            static_cast<uint32_t>(blocks[i]),
                            static_cast<uint32_t>(blocks[i] >> 32)};
      Philox4x32x10(11, 22, single);
      for (size_t word = 0; word < 4; ++word) ASSERT_EQ(words[4 * i + word], single[word]);
    }
  }
}

// Rows that are made together are those of single keys.
TEST(InitialRows, EqualSingleOnes) {
  for (const InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal, InitializerKind::kConstant}) {
    const InitializerConfig config = Config(kind, -1, 1);
    for (const size_t dim : {1, 3, 4, 16, 17, 64, 130}) {
      for (const size_t n : {1, 2, 5, 33}) {
        std::vector<int64_t> keys;
        for (size_t i = 0; i < n; ++i) keys.push_back(static_cast<int64_t>(i * i) - 7);
        std::vector<float> rows(n * dim), row(dim);
        InitialRows(config, keys.data(), n, dim, rows.data());
        for (size_t i = 0; i < n; ++i) {
          InitialRow(config, keys[i], dim, row.data());
          ASSERT_TRUE(std::equal(row.begin(), row.end(), &rows[i * dim])) << dim << " " << i;
        }
      }
    }
  }
}

TEST(NormalQuantile, InvertsTheDistributionFunction) {
  for (double p = 1e-10; p < 0.5; p *= 1.01) {
    const double q = p - 0.5;
    const double z = std::abs(q) <= kCentralQ ? CentralQuantile(q) : TailQuantile(q, p);
    EXPECT_NEAR(Phi(z) / p, 1.0, 1e-12) << p;
    EXPECT_EQ(std::abs(q) <= kCentralQ ? CentralQuantile(-q) : TailQuantile(-q, p), -z);
  }
}

TEST(InitialRow, ZerosAndConstantFillTheRow) {
  EXPECT_EQ(Row(Config(InitializerKind::kZeros, 5, 6), 1, 5), std::vector<float>(5, 0.0f));
  EXPECT_EQ(Row(Config(InitializerKind::kConstant, 1.5f, 0), 1, 5), std::vector<float>(5, 1.5f));
}

TEST(InitialRow, UniformHasTheRightMomentsAndStaysInItsHalfOpenRange) {
  const std::vector<float> sample = Sample(Config(InitializerKind::kUniform, -0.05f, 0.05f));
  for (float x : sample) {
    ASSERT_GE(x, -0.05f);
    ASSERT_LT(x, 0.05f);
  }
  EXPECT_NEAR(MeanAndStddev(sample).first, 0, 0.001);
  EXPECT_NEAR(MeanAndStddev(sample).second, 0.1 / std::sqrt(12.0), 0.0005);
  EXPECT_LT(KolmogorovSmirnov(sample, [](double x) { return (x + 0.05) / 0.1; }), 1.95);
}

TEST(InitialRow, UniformExcludesMaxvalWhereRoundingWouldReachIt) {
  const float low = 1.0f, high = std::nextafter(1.0f, 2.0f);
  for (float x : Sample(Config(InitializerKind::kUniform, low, high))) ASSERT_EQ(x, low);
  for (float x : Sample(Config(InitializerKind::kUniform, 2.0f, 2.0f))) ASSERT_EQ(x, 2.0f);
  const float huge = std::numeric_limits<float>::max();
  for (float x : Sample(Config(InitializerKind::kUniform, -huge, huge)))
    ASSERT_TRUE(std::isfinite(x));
}

TEST(InitialRow, NormalHasTheRightDistribution) {
  const std::vector<float> sample = Sample(Config(InitializerKind::kNormal, 1.0f, 0.5f));
  EXPECT_NEAR(MeanAndStddev(sample).first, 1.0, 0.012);
  EXPECT_NEAR(MeanAndStddev(sample).second, 0.5, 0.01);
  EXPECT_LT(KolmogorovSmirnov(sample, [](double x) { return Phi((x - 1) / 0.5); }), 1.95);
}

TEST(InitialRow, TruncatedNormalStaysWithinTwoStddev) {
  const std::vector<float> sample = Sample(Config(InitializerKind::kTruncatedNormal, 0.0f, 1.0f));
  for (float x : sample) ASSERT_LE(std::abs(x), 2.0f);
  EXPECT_NEAR(MeanAndStddev(sample).first, 0, 0.02);
  EXPECT_NEAR(MeanAndStddev(sample).second, 0.8796256610342398, 0.015);
  const double low = Phi(-2);
  EXPECT_LT(KolmogorovSmirnov(sample, [&](double x) { return (Phi(x) - low) / (1 - 2 * low); }),
            1.95);
}

TEST(InitialRow, IsAPureFunctionOfKeyWhateverTheOrder) {
  const InitializerConfig config = Config(InitializerKind::kNormal, 0, 1);
  std::vector<std::vector<float>> forward;
  for (int64_t key = 0; key < 20; ++key) forward.push_back(Row(config, key, 33));
  for (int64_t key = 19; key >= 0; --key) EXPECT_EQ(Row(config, key, 33), forward[key]);
}

TEST(InitialRow, AShorterRowIsAPrefixOfALongerOne) {
  for (InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal, InitializerKind::kTruncatedNormal}) {
    const std::vector<float> longest = Row(Config(kind, -1, 1), 42, 200);
    for (size_t dim : {1, 2, 3, 7, 17, 63, 64, 65, 128}) {
      const std::vector<float> row = Row(Config(kind, -1, 1), 42, dim);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), longest.begin())) << dim;
    }
  }
}

TEST(InitialRow, DiffersBetweenKeysSeedsSaltsAndPositions) {
  std::set<std::vector<float>> rows;
  size_t pieces = 0;
  for (int64_t key :
       {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{1} << 32, INT64_MIN, INT64_MAX}) {
    for (uint64_t seed : {0, 1, 2}) {
      for (uint64_t salt : {0, 1, 2}) {
        const std::vector<float> row =
            Row(Config(InitializerKind::kUniform, 0, 1, seed, salt), key, 128);
        for (size_t piece = 0; piece < 128; piece += 4, ++pieces) {
          rows.insert(std::vector<float>(row.begin() + piece, row.begin() + piece + 4));
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), pieces);
}

TEST(InitialRow, NeverChangesBetweenReleases) {
  // Rows that were never written are not stored. The next release must compute the same values for
  // them.
  const auto bits = [](float x) {
    uint32_t b;
    std::memcpy(&b, &x, sizeof(b));
    return b;
  };
  uint32_t checksum = 0;
  for (InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal, InitializerKind::kTruncatedNormal}) {
    for (int64_t key = -500; key < 500; ++key) {
      for (float x : Row(Config(kind, 0.25f, 1.5f), key, 64)) checksum = checksum * 31 + bits(x);
    }
  }
  EXPECT_EQ(checksum, 1141674102u);
}

TEST(ValidateInitializer, RefusesWhatCanNeverWorkAndNamesTheValue) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(ValidateInitializer(Config(InitializerKind::kZeros, nan, nan)).ok());
  EXPECT_TRUE(ValidateInitializer(Config(InitializerKind::kUniform, -1, 1)).ok());
  EXPECT_FALSE(ValidateInitializer(Config(InitializerKind::kConstant, nan, 0)).ok());
  EXPECT_FALSE(ValidateInitializer(Config(InitializerKind::kUniform, nan, 1)).ok());
  EXPECT_FALSE(ValidateInitializer(Config(InitializerKind::kNormal, 0, INFINITY)).ok());
  EXPECT_FALSE(ValidateInitializer(Config(static_cast<InitializerKind>(9), 0, 0)).ok());
  const Status inverted = ValidateInitializer(Config(InitializerKind::kUniform, 3, -1));
  EXPECT_EQ(inverted.code(), Code::kInvalidArgument);
  EXPECT_NE(inverted.message().find("minval=3"), std::string::npos);
  EXPECT_NE(ValidateInitializer(Config(InitializerKind::kNormal, 0, -0.5f)).message().find("-0.5"),
            std::string::npos);
}

TEST(InitializerKind, NamesRoundTrip) {
  for (uint32_t kind = 0; kind <= 4; ++kind) {
    const InitializerKind expected = static_cast<InitializerKind>(kind);
    const Result<InitializerKind> parsed = InitializerKindFromName(InitializerKindName(expected));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, expected);
  }
  EXPECT_FALSE(InitializerKindFromName("glorot_uniform").ok());
}

}  // namespace
}  // namespace tsps
