#include "core/table/row_type.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/group_fixture.h"

namespace tsps {
namespace {

struct Format {
  PlaneType type;
  int fraction_bits;
  int min_exponent;  // of the smallest normal number
  float most;
};
const Format kBfloat16 = {PlaneType::kBfloat16, 7, -126, 3.3895313892515355e38f};
const Format kFloat16 = {PlaneType::kFloat16, 10, -14, 65504.0f};

float Widen(PlaneType type, uint16_t stored) {
  float value;
  WidenRow(type, &stored, 1, &value);
  return value;
}

uint16_t Nearest(PlaneType type, float value) {
  uint16_t stored;
  NarrowRow(type, &value, 1, &stored);
  return stored;
}

// The number that the bits stand for, by the definition of the format.
double Meaning(const Format& format, uint16_t bits) {
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> format.fraction_bits;
  const int last = format.min_exponent - format.fraction_bits;  // exponent of a subnormal's unit
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, last)
                    : std::ldexp(fraction + (1 << format.fraction_bits), last + exponent - 1);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

class RowTypeTest : public ::testing::TestWithParam<Format> {};

TEST_P(RowTypeTest, EveryNumberIsWhatItsBitsMeanAndComesBack) {
  const Format& format = GetParam();
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto stored = static_cast<uint16_t>(bits);
    const float value = Widen(format.type, stored);
    if (std::isfinite(value)) {
      ASSERT_EQ(static_cast<double>(value), Meaning(format, stored)) << bits;
      ASSERT_EQ(Nearest(format.type, value), stored) << bits;
      // Stochastic rounding keeps numbers that need no rounding.
      uint16_t drawn;
      NarrowRowStochastically(format.type, &value, 1, RowDraw({}, bits, 1), &drawn);
      ASSERT_EQ(drawn, stored) << bits;
    } else {
      ASSERT_EQ(Widen(format.type, Nearest(format.type, value)) == value, !std::isnan(value));
    }
  }
}

TEST_P(RowTypeTest, FiniteNumbersStayFinite) {
  const Format& format = GetParam();
  const float beyond = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Widen(format.type, Nearest(format.type, beyond)), format.most);
  EXPECT_EQ(Widen(format.type, Nearest(format.type, -beyond)), -format.most);
  EXPECT_EQ(Widen(format.type, Nearest(format.type, infinity)), infinity);
  EXPECT_TRUE(std::isnan(Widen(format.type, Nearest(format.type, std::nanf("")))));
  for (uint64_t step = 1; step < 100; ++step) {
    const float values[] = {beyond, -beyond, infinity, -infinity, std::nanf("")};
    uint16_t drawn[5];
    NarrowRowStochastically(format.type, values, 5, RowDraw({}, 7, step), drawn);
    EXPECT_EQ(Widen(format.type, drawn[0]), format.most);
    EXPECT_EQ(Widen(format.type, drawn[1]), -format.most);
    EXPECT_EQ(Widen(format.type, drawn[2]), infinity);
    EXPECT_EQ(Widen(format.type, drawn[3]), -infinity);
    EXPECT_TRUE(std::isnan(Widen(format.type, drawn[4])));
  }
  EXPECT_EQ(FirstBeyondRange(format.type, &beyond, 1), 0);
  EXPECT_EQ(FirstBeyondRange(format.type, &format.most, 1), -1);
  EXPECT_EQ(FirstBeyondRange(format.type, &infinity, 1), -1);
  EXPECT_EQ(FirstBeyondRange(PlaneType::kFloat32, &beyond, 1), -1);
}

// Rounds one element stochastically: the draw is added below the last bit that stays.
uint16_t Reference(const Format& format, float value, uint64_t draw, uint32_t element) {
  uint32_t x = static_cast<uint32_t>(draw) + element * 0x9E3779B9u;
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= static_cast<uint32_t>(draw >> 32);
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  x ^= x >> 16;
  const int drawn_bits = 23 - format.fraction_bits;
  int exponent = value == 0 ? format.min_exponent : std::ilogb(value);
  exponent = std::max(exponent, format.min_exponent);
  // In units of the draw. A unit of the last place is 2^drawn_bits of them.
  const double units =
      std::trunc(std::ldexp(std::abs(double{value}), drawn_bits + format.fraction_bits - exponent));
  const double sum = units + (x >> (32 - drawn_bits));
  const double rounded =
      std::ldexp(std::floor(std::ldexp(sum, -drawn_bits)), exponent - format.fraction_bits);
  return Nearest(format.type, static_cast<float>(std::copysign(rounded, value)));
}

TEST_P(RowTypeTest, EveryInstructionSetRoundsAsTheReferenceDoes) {
  const Format& format = GetParam();
  std::mt19937_64 random(1);
  for (const size_t dim : {size_t{1}, size_t{7}, size_t{16}, size_t{64}, size_t{1000}}) {
    std::vector<float> values(dim);
    for (size_t i = 0; i < dim; ++i) {
      const double magnitude = std::ldexp(1.0 + static_cast<double>(random() % 1000003) / 1000003,
                                          static_cast<int>(random() % 40) - 30);
      values[i] = static_cast<float>((random() & 1) != 0 ? -magnitude : magnitude);
    }
    values[0] = 0;
    for (uint64_t step = 1; step < 30; ++step) {
      const uint64_t draw = RowDraw({}, static_cast<int64_t>(dim), step);
      std::vector<uint16_t> rows(dim + 1, 0xABCD);
      NarrowRowStochastically(format.type, values.data(), dim, draw, rows.data());
      for (size_t i = 0; i < dim; ++i) {
        ASSERT_EQ(rows[i], Reference(format, values[i], draw, static_cast<uint32_t>(i)))
            << values[i] << " at " << i << " of " << dim;
      }
      ASSERT_EQ(rows[dim], 0xABCD);
    }
  }
}

TEST_P(RowTypeTest, WhatIsExpectedIsTheValue) {
  const Format& format = GetParam();
  constexpr size_t kDim = 64;
  constexpr int kDraws = 4000;
  const float unit = std::ldexp(1.0f, -format.fraction_bits);  // of the last place in [1, 2)
  for (const float part : {0.0f, 0.1f, 0.5f, 0.85f}) {
    const std::vector<float> values(kDim, 1.0f + part * unit);
    double sum = 0;
    std::vector<double> element_sums(kDim);
    for (int k = 0; k < kDraws; ++k) {
      // Keys and steps are consecutive: draws must not depend on them in a regular way.
      const uint64_t draw = RowDraw({}, k % 40, static_cast<uint64_t>(k / 40));
      uint16_t row[kDim];
      NarrowRowStochastically(format.type, values.data(), kDim, draw, row);
      for (size_t i = 0; i < kDim; ++i) {
        const float value = Widen(format.type, row[i]);
        ASSERT_TRUE(value == 1.0f || value == 1.0f + unit);
        sum += (value - 1.0f) / unit;
        element_sums[i] += (value - 1.0f) / unit;
      }
    }
    // Five standard deviations.
    const double deviation = std::sqrt(part * (1 - part));
    EXPECT_NEAR(sum / (kDim * kDraws), part, 5 * deviation / std::sqrt(kDim * kDraws) + 1e-3);
    for (const double element_sum : element_sums) {
      EXPECT_NEAR(element_sum / kDraws, part, 5 * deviation / std::sqrt(kDraws) + 1e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowTypeTest, ::testing::Values(kBfloat16, kFloat16),
                         [](const auto& info) {
                           return info.param.type == PlaneType::kBfloat16 ? "Bfloat16" : "Float16";
                         });

TEST(RowDraw, DependsOnEverything) {
  InitializerConfig table;
  table.seed = 3;
  table.salt = 4;
  const uint64_t draw = RowDraw(table, 5, 6);
  EXPECT_EQ(RowDraw(table, 5, 6), draw);
  EXPECT_NE(RowDraw(table, 6, 6), draw);
  EXPECT_NE(RowDraw(table, 5, 7), draw);
  EXPECT_NE(RowDraw(table, 6, 5), draw);
  InitializerConfig changed = table;
  changed.salt = 5;
  EXPECT_NE(RowDraw(changed, 5, 6), draw);
  changed = table;
  changed.seed = 4;
  EXPECT_NE(RowDraw(changed, 5, 6), draw);
}

class NarrowRowsTest : public GroupTest {
 protected:
  int AddNarrow(PlaneType type, Rounding rounding) {
    TableConfig config;
    config.name = "narrow";
    config.uuid = std::string(32, 'a');
    config.dim = kDim;
    config.initializer = {InitializerKind::kUniform, -0.05f, 0.05f, 11, 0};
    config.row_type = type;
    config.rounding = rounding;
    const auto table = writer_->CreateTable(config);
    EXPECT_TRUE(table.ok()) << table.status().message();
    OptimizerConfig adagrad;
    adagrad.kind = OptimizerKind::kAdagrad;
    adagrad.slot_init[0] = 0.1f;
    EXPECT_TRUE(writer_->BindOptimizer(*table, adagrad, false).ok());
    return *table;
  }

  static constexpr size_t kDim = 19;
};

// Compares the steps of a table with rows that are computed from the definitions.
TEST_F(NarrowRowsTest, AStepWidensUpdatesAndRounds) {
  const float hyper[] = {0.01f, 1e-7f};
  SerialExecutor serial;
  for (const PlaneType type : {PlaneType::kBfloat16, PlaneType::kFloat16}) {
    for (const Rounding rounding : {Rounding::kStochastic, Rounding::kNearest}) {
      const int table = AddNarrow(type, rounding);
      const TableConfig config = ConfigOf(*group_, table);
      EXPECT_EQ(config.row_type, type);
      EXPECT_EQ(config.rounding, rounding);
      const std::vector<int64_t> keys = {3, -1, int64_t{1} << 40};
      std::vector<std::vector<uint16_t>> rows;
      std::vector<std::vector<float>> sums(keys.size(), std::vector<float>(kDim, 0.1f));
      for (const int64_t key : keys) {
        std::vector<float> initial(kDim);
        InitialRow(config.initializer, key, kDim, initial.data());
        rows.emplace_back(kDim);
        NarrowRow(type, initial.data(), kDim, rows.back().data());
      }
      for (int k = 0; k < 20; ++k) {
        const uint64_t step = group_->step() + 1;
        std::vector<float> gradients(keys.size() * kDim);
        for (size_t i = 0; i < gradients.size(); ++i) {
          gradients[i] = std::sin(static_cast<float>(i + 31 * step)) * 0.01f;
        }
        ASSERT_TSPS_OK(writer_->ApplyStep(
            step, {{table, keys.data(), gradients.data(), keys.size(), hyper, 2}}, serial));
        for (size_t i = 0; i < keys.size(); ++i) {
          std::vector<float> values(kDim);
          WidenRow(type, rows[i].data(), kDim, values.data());
          for (size_t d = 0; d < kDim; ++d) {
            const float g = gradients[i * kDim + d];
            sums[i][d] += g * g;
            values[d] -= hyper[0] * g / std::sqrt(sums[i][d] + hyper[1]);
          }
          if (rounding == Rounding::kNearest) {
            NarrowRow(type, values.data(), kDim, rows[i].data());
          } else {
            const uint64_t draw = RowDraw(config.initializer, keys[i], step);
            NarrowRowStochastically(type, values.data(), kDim, draw, rows[i].data());
          }
          WidenRow(type, rows[i].data(), kDim, values.data());
          ASSERT_EQ(LookupRow(*group_, table, keys[i]), values) << "step " << step;
        }
      }
      ASSERT_TSPS_OK(writer_->RemoveTable(table));
    }
  }
}

TEST_F(NarrowRowsTest, ATableKeepsItsTypeAndItsRowsWhenItIsOpenedAgain) {
  const int table = AddNarrow(PlaneType::kFloat16, Rounding::kNearest);
  ASSERT_TSPS_OK(Step(table, {1, 2, 3}, 0.01f));
  const Image before = ReadImage(*group_);
  Reopen();
  EXPECT_EQ(ConfigOf(*group_, table).row_type, PlaneType::kFloat16);
  EXPECT_EQ(ConfigOf(*group_, table).rounding, Rounding::kNearest);
  EXPECT_EQ(ReadImage(*group_), before);
}

TEST_F(NarrowRowsTest, ATableKeepsWhichShardItIsAndThereAreNoOthers) {
  TableConfig config;
  config.name = "shard";
  config.uuid = std::string(32, 'b');
  config.dim = 4;
  for (const Shard shard : {Shard{1, 0}, Shard{0, 1}, Shard{3, 3}}) {
    config.shard = shard;
    EXPECT_EQ(writer_->CreateTable(config).status().code(), Code::kInvalidArgument) << shard.nodes;
  }
  config.shard = {2, 3};
  const auto table = writer_->CreateTable(config);
  ASSERT_TSPS_OK(table.status());
  Reopen();
  EXPECT_EQ(ConfigOf(*group_, *table).shard.node, 2u);
  EXPECT_EQ(ConfigOf(*group_, *table).shard.nodes, 3u);
}

TEST_F(NarrowRowsTest, WhatIsAssignedIsRoundedToTheNearestOrRefused) {
  const int table = AddNarrow(PlaneType::kFloat16, Rounding::kStochastic);
  SerialExecutor serial;
  const std::vector<int64_t> keys = {1, 2};
  std::vector<float> rows(2 * kDim, 0.1f);
  ASSERT_TSPS_OK(writer_->Assign(table, keys.data(), rows.data(), nullptr, 2, serial));
  EXPECT_EQ(LookupRow(*group_, table, 2), std::vector<float>(kDim, 0.0999755859375f));
  rows[kDim + 3] = 1e6f;
  const Status refused = writer_->Assign(table, keys.data(), rows.data(), nullptr, 2, serial);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("1e+06, in the row of key 2, is beyond the range of float16"),
            std::string::npos)
      << refused.message();
  EXPECT_EQ(LookupRow(*group_, table, 2), std::vector<float>(kDim, 0.0999755859375f));
}

TEST_F(NarrowRowsTest, NoOtherTypesAreRows) {
  TableConfig config;
  config.name = "odd";
  config.uuid = std::string(32, 'b');
  config.dim = 4;
  config.row_type = PlaneType::kInt64;
  const auto table = writer_->CreateTable(config);
  EXPECT_EQ(table.status().code(), Code::kInvalidArgument);
  EXPECT_NE(table.status().message().find("Received: int64"), std::string::npos);
}

}  // namespace
}  // namespace tsps
