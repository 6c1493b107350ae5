#include "core/table/row_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tsps {
namespace {

constexpr size_t kDims[] = {1, 3, 7, 17, 64};

struct State {
  std::vector<double> w, slot0, slot1;
};

// Keras 3's rules, and FBGEMM's of row-wise Adagrad, word for word, in double.
void ReferenceStep(OptimizerKind kind, const std::vector<double>& hyper,
                   const std::vector<double>& g, State* s) {
  double mean = 0;
  for (const double x : g) mean += x * x / static_cast<double>(g.size());
  if (kind == OptimizerKind::kRowWiseAdagrad) s->slot0[0] += mean;
  for (size_t i = 0; i < g.size(); ++i) {
    if (kind == OptimizerKind::kSgd) {
      s->w[i] -= hyper[0] * g[i];
    } else if (kind == OptimizerKind::kAdagrad) {
      s->slot0[i] += g[i] * g[i];
      s->w[i] -= hyper[0] * g[i] / std::sqrt(s->slot0[i] + hyper[1]);
    } else if (kind == OptimizerKind::kRowWiseAdagrad) {
      s->w[i] -= hyper[0] * g[i] / (std::sqrt(s->slot0[0]) + hyper[1]);
    } else {
      const double alpha = hyper[0] * std::sqrt(1 - std::pow(hyper[2], hyper[4])) /
                           (1 - std::pow(hyper[1], hyper[4]));
      s->slot0[i] += (g[i] - s->slot0[i]) * (1 - hyper[1]);
      s->slot1[i] += (g[i] * g[i] - s->slot1[i]) * (1 - hyper[2]);
      s->w[i] -= s->slot0[i] * alpha / (std::sqrt(s->slot1[i]) + hyper[3]);
    }
  }
}

std::vector<double> Hyper(OptimizerKind kind, int step) {
  // A learning rate that changes with every step, as a schedule's does.
  const double learning_rate = 0.05 / (1 + 0.01 * step);
  if (kind == OptimizerKind::kSgd) return {learning_rate};
  if (kind == OptimizerKind::kAdagrad) return {learning_rate, 1e-7};
  if (kind == OptimizerKind::kRowWiseAdagrad) return {learning_rate, 1e-3};
  return {learning_rate, 0.9, 0.999, 1e-7, static_cast<double>(step)};
}

// Largest difference from the reference after 200 steps, as a part of the largest weight.
double Drift(OptimizerKind kind, size_t dim) {
  std::mt19937 random(static_cast<uint32_t>(dim));
  std::normal_distribution<float> normal;
  std::vector<float> w(dim), slot0(dim, 0.1f), slot1(dim, 0.1f), g(dim);
  if (kind == OptimizerKind::kAdam) {
    std::fill(slot0.begin(), slot0.end(), 0.0f);
    std::fill(slot1.begin(), slot1.end(), 0.0f);
  }
  for (float& x : w) x = normal(random);
  State s{{w.begin(), w.end()}, {slot0.begin(), slot0.end()}, {slot1.begin(), slot1.end()}};
  float* slots[] = {slot0.data(), slot1.data()};
  for (int step = 1; step <= 200; ++step) {
    for (float& x : g) x = normal(random);
    const std::vector<double> hyper = Hyper(kind, step);
    const std::vector<float> hyper_float(hyper.begin(), hyper.end());
    RowUpdater(kind, dim, hyper_float.data()).Update(g.data(), w.data(), slots);
    ReferenceStep(kind, hyper, {g.begin(), g.end()}, &s);
  }
  double largest = 0, difference = 0;
  for (size_t i = 0; i < dim; ++i) {
    largest = std::max(largest, std::abs(s.w[i]));
    difference = std::max(difference, std::abs(s.w[i] - w[i]));
  }
  return difference / largest;
}

// Tolerances: twice what the same rules in NumPy's float32 drift from float64.
TEST(RowUpdater, SgdFollowsTheReferenceFor200Steps) {
  for (size_t dim : kDims) EXPECT_LT(Drift(OptimizerKind::kSgd, dim), 1.2e-6) << dim;
}

TEST(RowUpdater, AdagradFollowsTheReferenceFor200Steps) {
  for (size_t dim : kDims) EXPECT_LT(Drift(OptimizerKind::kAdagrad, dim), 1.2e-6) << dim;
}

TEST(RowUpdater, RowWiseAdagradFollowsTheReferenceFor200Steps) {
  for (size_t dim : kDims) EXPECT_LT(Drift(OptimizerKind::kRowWiseAdagrad, dim), 1.2e-6) << dim;
}

TEST(RowUpdater, AdamFollowsTheReferenceFor200Steps) {
  for (size_t dim : kDims) EXPECT_LT(Drift(OptimizerKind::kAdam, dim), 1.5e-5) << dim;
}

TEST(RowUpdater, EveryInstructionSetRoundsLikeSeparateOperations) {
  // A fused multiply-add anywhere would change some last bit; volatile forbids it here.
  const size_t dim = 71;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> g(dim), w(dim), accumulator(dim);
  for (size_t i = 0; i < dim; ++i) {
    g[i] = normal(random);
    w[i] = normal(random);
    accumulator[i] = std::abs(normal(random));
  }
  std::vector<float> expected_w(dim), expected_accumulator(dim);
  const float hyper[] = {0.05f, 1e-7f};
  for (size_t i = 0; i < dim; ++i) {
    volatile float square = g[i] * g[i];
    volatile float sum = accumulator[i] + square;
    volatile float shifted = sum + hyper[1];
    volatile float root = std::sqrt(shifted);
    volatile float scaled = hyper[0] * g[i];
    volatile float step = scaled / root;
    expected_accumulator[i] = sum;
    expected_w[i] = w[i] - step;
  }
  float* slots[] = {accumulator.data()};
  RowUpdater(OptimizerKind::kAdagrad, dim, hyper).Update(g.data(), w.data(), slots);
  EXPECT_EQ(w, expected_w);
  EXPECT_EQ(accumulator, expected_accumulator);
}

TEST(RowUpdater, RowWiseAdagradRoundsLikeSeparateOperationsInOneOrder) {
  // 71 floats: four times the 16 partial sums, and 7 that are added one after the other.
  const size_t dim = 71, lanes = 16;
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> g(dim), w(dim), expected_w(dim);
  for (size_t i = 0; i < dim; ++i) {
    g[i] = normal(random);
    w[i] = normal(random);
  }
  float accumulator = 0.1f;
  const float hyper[] = {0.05f, 1e-3f};
  volatile float partial[lanes] = {};
  volatile float sum = 0;
  for (size_t i = 0; i < dim; ++i) {
    volatile float square = g[i] * g[i];
    if (i < dim / lanes * lanes) {
      partial[i % lanes] = partial[i % lanes] + square;
    } else {
      sum = sum + square;
    }
  }
  for (size_t k = 0; k < lanes; ++k) sum = sum + partial[k];
  volatile float mean = sum / static_cast<float>(dim);
  volatile float expected_accumulator = accumulator + mean;
  volatile float root = std::sqrt(expected_accumulator);
  volatile float divisor = root + hyper[1];
  volatile float multiplier = hyper[0] / divisor;
  for (size_t i = 0; i < dim; ++i) {
    volatile float step = multiplier * g[i];
    expected_w[i] = w[i] - step;
  }
  float* slots[] = {&accumulator};
  RowUpdater(OptimizerKind::kRowWiseAdagrad, dim, hyper).Update(g.data(), w.data(), slots);
  EXPECT_EQ(w, expected_w);
  EXPECT_EQ(accumulator, expected_accumulator);
}

TEST(RowUpdater, WritesNothingPastTheRow) {
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad, OptimizerKind::kAdam,
                             OptimizerKind::kRowWiseAdagrad}) {
    for (size_t dim : kDims) {
      std::vector<float> g(dim, 1.0f), w(dim + 16, 3.0f), slot0(dim + 16, 3.0f),
          slot1(dim + 16, 3.0f);
      float* slots[] = {slot0.data(), slot1.data()};
      const std::vector<double> hyper = Hyper(kind, 1);
      const std::vector<float> hyper_float(hyper.begin(), hyper.end());
      RowUpdater(kind, dim, hyper_float.data()).Update(g.data(), w.data(), slots);
      for (size_t i = 0; i < dim; ++i) ASSERT_NE(w[i], 3.0f);
      for (size_t i = dim; i < dim + 16; ++i) {
        ASSERT_EQ(w[i] + slot0[i] + slot1[i], 9.0f) << OptimizerKindName(kind) << " " << dim;
      }
      for (size_t i = 0; i < dim; ++i) {
        ASSERT_EQ(slot0[i] != 3.0f, i < SlotWidth(kind, 0, dim)) << OptimizerKindName(kind);
      }
    }
  }
}

TEST(RowUpdater, WithoutAnOptimizerChangesNothing) {
  float w = 2, g = 1;
  RowUpdater(OptimizerKind::kNone, 1, nullptr).Update(&g, &w, nullptr);
  EXPECT_EQ(w, 2);
}

TEST(RowUpdater, AdamStaysFiniteAtAVeryLateStep) {
  float w = 2, g = 1, m = 0, v = 0;
  float* slots[] = {&m, &v};
  const float hyper[] = {0.001f, 0.9f, 0.999f, 1e-7f, 1e30f};
  RowUpdater(OptimizerKind::kAdam, 1, hyper).Update(&g, &w, slots);
  EXPECT_TRUE(std::isfinite(w));
  EXPECT_LT(w, 2);
}

TEST(ValidateHyper, NamesWhatIsWrong) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float good[] = {0.001f, 0.9f, 0.999f, 1e-7f, 1};
  EXPECT_TRUE(ValidateHyper(OptimizerKind::kAdam, good, 5).ok());
  EXPECT_TRUE(ValidateHyper(OptimizerKind::kNone, nullptr, 0).ok());
  const auto message = [](OptimizerKind kind, std::vector<float> hyper) {
    const Status status = ValidateHyper(kind, hyper.data(), hyper.size());
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(message(OptimizerKind::kAdagrad, {0.1f}), "takes 2");
  contains(message(OptimizerKind::kSgd, {nan}), "learning_rate");
  contains(message(OptimizerKind::kAdagrad, {0.1f, INFINITY}), "epsilon");
  contains(message(OptimizerKind::kAdam, {0.1f, 1.0f, 0.999f, 1e-7f, 1}), "beta_1");
  contains(message(OptimizerKind::kAdam, {0.1f, 0.9f, -0.5f, 1e-7f, 1}), "beta_2");
  contains(message(OptimizerKind::kAdam, {0.1f, 0.9f, 0.999f, 1e-7f, 0}), "t of");
}

TEST(OptimizerKind, NamesAndSlotsMatch) {
  for (uint32_t kind = 0; kind <= 4; ++kind) {
    const OptimizerKind expected = static_cast<OptimizerKind>(kind);
    const Result<OptimizerKind> parsed = OptimizerKindFromName(OptimizerKindName(expected));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, expected);
  }
  EXPECT_FALSE(OptimizerKindFromName("lamb").ok());
  EXPECT_FALSE(IsOptimizerKind(5));
  EXPECT_EQ(SlotCount(OptimizerKind::kSgd), 0);
  EXPECT_STREQ(SlotName(OptimizerKind::kAdagrad, 0), "accumulator");
  EXPECT_STREQ(SlotName(OptimizerKind::kAdam, 1), "v");
  EXPECT_STREQ(SlotName(OptimizerKind::kAdam, 2), "unknown");
  EXPECT_STREQ(SlotName(OptimizerKind::kRowWiseAdagrad, 0), "accumulator");
  EXPECT_EQ(SlotWidth(OptimizerKind::kAdam, 1, 17), 17u);
  EXPECT_EQ(SlotWidth(OptimizerKind::kRowWiseAdagrad, 0, 17), 1u);
  EXPECT_EQ(SlotWidth(OptimizerKind::kRowWiseAdagrad, 1, 17), 0u);
}

}  // namespace
}  // namespace tsps
