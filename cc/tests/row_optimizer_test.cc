#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/table/row_updater.h"

namespace tsps {
namespace {

constexpr size_t kDims[] = {1, 3, 7, 17, 64};

constexpr OptimizerKind kKinds[] = {
    OptimizerKind::kSgd,
    OptimizerKind::kAdagrad,
    OptimizerKind::kAdam,
    OptimizerKind::kRowWiseAdagrad,
    OptimizerKind::kMomentum,
    OptimizerKind::kAmsgrad,
    OptimizerKind::kAdamW,
    OptimizerKind::kRmsprop,
    OptimizerKind::kRmspropMomentum,
    OptimizerKind::kRmspropCentered,
    OptimizerKind::kRmspropCenteredMomentum,
    OptimizerKind::kFtrl,
};

struct State {
  std::vector<double> w, slots[kMaxSlots];
};

// One step by the rules of Keras 3, or of FBGEMM for row-wise Adagrad, in double precision.
void ReferenceStep(OptimizerKind kind, const std::vector<double>& hyper,
                   const std::vector<double>& g, State* s) {
  const double rate = hyper[0];
  double mean = 0;
  for (const double x : g) mean += x * x / static_cast<double>(g.size());
  if (kind == OptimizerKind::kRowWiseAdagrad) s->slots[0][0] += mean;
  for (size_t i = 0; i < g.size(); ++i) {
    double& w = s->w[i];
    const auto slot = [&](size_t k) -> double& { return s->slots[k][i]; };
    switch (kind) {
      case OptimizerKind::kNone:
        break;
      case OptimizerKind::kSgd:
        w -= rate * g[i];
        break;
      case OptimizerKind::kMomentum:
        slot(0) = hyper[1] * slot(0) - rate * g[i];
        w += hyper[2] != 0 ? hyper[1] * slot(0) - rate * g[i] : slot(0);
        break;
      case OptimizerKind::kAdagrad:
        slot(0) += g[i] * g[i];
        w -= rate * g[i] / std::sqrt(slot(0) + hyper[1]);
        break;
      case OptimizerKind::kRowWiseAdagrad:
        w -= rate * g[i] / (std::sqrt(s->slots[0][0]) + hyper[1]);
        break;
      case OptimizerKind::kAdam:
      case OptimizerKind::kAmsgrad:
      case OptimizerKind::kAdamW: {
        if (kind == OptimizerKind::kAdamW) w -= w * hyper[5] * rate;
        const double alpha =
            rate * std::sqrt(1 - std::pow(hyper[2], hyper[4])) / (1 - std::pow(hyper[1], hyper[4]));
        slot(0) += (g[i] - slot(0)) * (1 - hyper[1]);
        slot(1) += (g[i] * g[i] - slot(1)) * (1 - hyper[2]);
        double second = slot(1);
        if (kind == OptimizerKind::kAmsgrad) second = slot(2) = std::max(slot(2), slot(1));
        w -= slot(0) * alpha / (std::sqrt(second) + hyper[3]);
        break;
      }
      case OptimizerKind::kRmsprop:
      case OptimizerKind::kRmspropMomentum:
      case OptimizerKind::kRmspropCentered:
      case OptimizerKind::kRmspropCenteredMomentum: {
        const bool momentum = kind == OptimizerKind::kRmspropMomentum ||
                              kind == OptimizerKind::kRmspropCenteredMomentum;
        const bool centered = kind == OptimizerKind::kRmspropCentered ||
                              kind == OptimizerKind::kRmspropCenteredMomentum;
        slot(0) = hyper[1] * slot(0) + (1 - hyper[1]) * g[i] * g[i];
        double variance = slot(0);
        if (centered) {
          double& average = slot(momentum ? 2 : 1);
          average = hyper[1] * average + (1 - hyper[1]) * g[i];
          variance -= average * average;
        }
        const double step = rate * g[i] / std::sqrt(variance + hyper[3]);
        if (momentum) slot(1) = hyper[2] * slot(1) + step;
        w -= momentum ? slot(1) : step;
        break;
      }
      case OptimizerKind::kFtrl: {
        const double sum = slot(0) + g[i] * g[i];
        slot(1) += g[i] + 2 * hyper[3] * w - (std::sqrt(sum) - std::sqrt(slot(0))) / rate * w;
        const double quadratic = std::sqrt(sum) / rate + 2 * (hyper[2] + hyper[4] / (2 * rate));
        w = (std::min(std::max(slot(1), -hyper[1]), hyper[1]) - slot(1)) / quadratic;
        slot(0) = sum;
        break;
      }
    }
  }
}

std::vector<double> Hyper(OptimizerKind kind, int step) {
  // A learning rate that changes with every step, as a schedule's does.
  const double rate = 0.05 / (1 + 0.01 * step);
  const auto t = static_cast<double>(step);
  switch (kind) {
    case OptimizerKind::kNone:
      return {};
    case OptimizerKind::kSgd:
      return {rate};
    case OptimizerKind::kMomentum:
      return {rate, 0.9, static_cast<double>(step % 2)};
    case OptimizerKind::kAdagrad:
      return {rate, 1e-7};
    case OptimizerKind::kRowWiseAdagrad:
      return {rate, 1e-3};
    case OptimizerKind::kAdam:
    case OptimizerKind::kAmsgrad:
      return {rate, 0.9, 0.999, 1e-7, t};
    case OptimizerKind::kAdamW:
      return {rate, 0.9, 0.999, 1e-7, t, 0.01};
    case OptimizerKind::kRmsprop:
    case OptimizerKind::kRmspropMomentum:
    case OptimizerKind::kRmspropCentered:
    case OptimizerKind::kRmspropCenteredMomentum:
      return {rate, 0.9, 0.8, 1e-3};
    case OptimizerKind::kFtrl:
      return {rate, 0.01, 0.02, 0.03, 0.5};
  }
  return {};
}

// The initial value of a slot in the Keras optimizer.
float SlotInit(OptimizerKind kind, int slot) {
  const bool sums = kind == OptimizerKind::kAdagrad || kind == OptimizerKind::kRowWiseAdagrad ||
                    kind == OptimizerKind::kFtrl;
  return sums && slot == 0 ? 0.1f : 0.0f;
}

// The largest difference from the reference after 200 steps, relative to the largest weight.
double Drift(OptimizerKind kind, size_t dim) {
  std::mt19937 random(static_cast<uint32_t>(dim));
  std::normal_distribution<float> normal;
  std::vector<float> w(dim), slots[kMaxSlots], g(dim);
  for (float& x : w) x = normal(random);
  State s{{w.begin(), w.end()}, {}};
  float* pointers[kMaxSlots];
  for (int k = 0; k < kMaxSlots; ++k) {
    slots[k].assign(dim, SlotInit(kind, k));
    s.slots[k].assign(slots[k].begin(), slots[k].end());
    pointers[k] = slots[k].data();
  }
  for (int step = 1; step <= 200; ++step) {
    for (float& x : g) x = normal(random);
    const std::vector<double> hyper = Hyper(kind, step);
    const std::vector<float> hyper_float(hyper.begin(), hyper.end());
    RowUpdater(kind, dim, hyper_float.data(), hyper_float.size())
        .Update(g.data(), w.data(), pointers);
    ReferenceStep(kind, hyper, {g.begin(), g.end()}, &s);
  }
  double largest = 0, difference = 0;
  for (size_t i = 0; i < dim; ++i) {
    largest = std::max(largest, std::abs(s.w[i]));
    difference = std::max(difference, std::abs(s.w[i] - w[i]));
  }
  return difference / largest;
}

// The tolerances are about twice the drift between float32 and float64 of the same rules in NumPy.
TEST(RowUpdater, EveryRuleFollowsTheReferenceFor200Steps) {
  for (const OptimizerKind kind : kKinds) {
    const bool moments = kind == OptimizerKind::kAdam || kind == OptimizerKind::kAmsgrad ||
                         kind == OptimizerKind::kAdamW;
    const bool sums = kind == OptimizerKind::kSgd || kind == OptimizerKind::kAdagrad ||
                      kind == OptimizerKind::kRowWiseAdagrad;
    const double tolerance = moments ? 1.5e-5 : sums ? 1.2e-6 : 8e-6;
    for (const size_t dim : kDims) {
      EXPECT_LT(Drift(kind, dim), tolerance) << OptimizerKindName(kind) << " " << dim;
    }
  }
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
  RowUpdater(OptimizerKind::kAdagrad, dim, hyper, 2).Update(g.data(), w.data(), slots);
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
  RowUpdater(OptimizerKind::kRowWiseAdagrad, dim, hyper, 2).Update(g.data(), w.data(), slots);
  EXPECT_EQ(w, expected_w);
  EXPECT_EQ(accumulator, expected_accumulator);
}

TEST(RowUpdater, WritesNothingPastTheRow) {
  for (const OptimizerKind kind : kKinds) {
    for (const size_t dim : kDims) {
      std::vector<float> g(dim, 1.0f), w(dim + 16, 3.0f), slots[kMaxSlots];
      float* pointers[kMaxSlots];
      for (int k = 0; k < kMaxSlots; ++k) {
        slots[k].assign(dim + 16, 3.0f);
        pointers[k] = slots[k].data();
      }
      slots[2].assign(dim + 16, 0.5f);  // it and its square are less than the second moment
      const std::vector<double> hyper = Hyper(kind, 1);
      const std::vector<float> hyper_float(hyper.begin(), hyper.end());
      RowUpdater(kind, dim, hyper_float.data(), hyper_float.size())
          .Update(g.data(), w.data(), pointers);
      for (size_t i = 0; i < dim + 16; ++i) {
        ASSERT_EQ(w[i] != 3.0f, i < dim) << OptimizerKindName(kind) << " " << dim;
        for (int k = 0; k < kMaxSlots; ++k) {
          ASSERT_EQ(slots[k][i] != (k == 2 ? 0.5f : 3.0f), i < SlotWidth(kind, k, dim))
              << OptimizerKindName(kind) << " " << dim << " slot " << k;
        }
      }
    }
  }
}

// SGD with gradients of 0 is compared with Keras's definitions.
TEST(RowUpdater, ConstraintsMoveRowsAsKerasDoes) {
  struct Case {
    ConstraintKind kind;
    float low, high, rate;
  };
  for (const Case& c :
       {Case{ConstraintKind::kNonNegative, 0, 1, 1}, Case{ConstraintKind::kMaxNorm, 0, 0.5f, 1},
        Case{ConstraintKind::kMaxNorm, 0, 1000, 1}, Case{ConstraintKind::kUnitNorm, 0, 1, 1},
        Case{ConstraintKind::kMinMaxNorm, 0.25f, 0.5f, 0.75f},
        Case{ConstraintKind::kMinMaxNorm, 200, 500, 0.75f},
        Case{ConstraintKind::kMinMaxNorm, 0.25f, 500, 1}}) {
    for (const size_t dim : kDims) {
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      std::vector<float> w(dim), g(dim);
      for (float& x : w) x = normal(random);
      double squares = 0;
      for (const float x : w) squares += double{x} * x;
      const double norm = std::sqrt(squares);
      double target_norm = std::min<double>(norm, c.high);
      if (c.kind == ConstraintKind::kUnitNorm) target_norm = 1;
      if (c.kind == ConstraintKind::kMinMaxNorm) {
        target_norm = c.rate * std::max<double>(c.low, target_norm) + (1 - c.rate) * norm;
      }
      std::vector<double> expected;
      for (const float x : w) {
        expected.push_back(c.kind == ConstraintKind::kNonNegative
                               ? std::max(x, 0.0f)
                               : x * (target_norm / (1e-3f + norm)));
      }
      const float hyper[] = {1, static_cast<float>(c.kind), c.low, c.high, c.rate, 1e-3f};
      ASSERT_TRUE(ValidateHyper(OptimizerKind::kSgd, hyper, 6).ok());
      RowUpdater(OptimizerKind::kSgd, dim, hyper, 6).Update(g.data(), w.data(), nullptr);
      for (size_t i = 0; i < dim; ++i) {
        ASSERT_NEAR(w[i], expected[i], 1e-5 * std::max(1.0, std::abs(expected[i]))) << dim;
      }
    }
  }
}

TEST(RowUpdater, WithoutAnOptimizerChangesNothing) {
  float w = 2, g = 1;
  RowUpdater(OptimizerKind::kNone, 1, nullptr, 0).Update(&g, &w, nullptr);
  EXPECT_EQ(w, 2);
}

TEST(RowUpdater, AdamStaysFiniteAtAVeryLateStep) {
  float w = 2, g = 1, m = 0, v = 0;
  float* slots[] = {&m, &v};
  const float hyper[] = {0.001f, 0.9f, 0.999f, 1e-7f, 1e30f};
  RowUpdater(OptimizerKind::kAdam, 1, hyper, 5).Update(&g, &w, slots);
  EXPECT_TRUE(std::isfinite(w));
  EXPECT_LT(w, 2);
}

TEST(ValidateHyper, RefusesConstraintsThatCannotBe) {
  const float good[] = {1, 4, 0.5f, 1, 0.5f, 1e-7f};
  EXPECT_TRUE(ValidateHyper(OptimizerKind::kSgd, good, 6).ok());
  EXPECT_FALSE(ValidateHyper(OptimizerKind::kSgd, good, 5).ok());
  const float infinity = std::numeric_limits<float>::infinity();
  const std::pair<int, float> invalid_values[] = {
      {1, 5}, {1, -1}, {2, -1}, {2, 2}, {3, infinity}, {4, 1.5f}, {4, -1}, {5, -1}, {5, infinity}};
  for (const auto& [at, value] : invalid_values) {
    std::vector<float> bad(good, good + 6);
    bad[static_cast<size_t>(at)] = value;
    const Status status = ValidateHyper(OptimizerKind::kSgd, bad.data(), 6);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << at << " " << value;
    EXPECT_NE(status.message().find("a constraint must have"), std::string::npos);
  }
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
  contains(message(OptimizerKind::kAmsgrad, {0.1f, 1.0f, 0.999f, 1e-7f, 1}), "beta_1");
  contains(message(OptimizerKind::kAdamW, {0.1f, 0.9f, 0.9f, 1e-7f, 1, -1}), "weight_decay");
  contains(message(OptimizerKind::kMomentum, {0.1f, 1.5f, 0}), "momentum must");
  contains(message(OptimizerKind::kMomentum, {0.1f, 0.9f, 0.5f}), "nesterov");
  contains(message(OptimizerKind::kRmspropCentered, {0.1f, -0.1f, 0, 1e-7f}), "rho");
  contains(message(OptimizerKind::kFtrl, {0, 0, 0, 0, 0}), "learning_rate");
  contains(message(OptimizerKind::kFtrl, {0.1f, -1, 0, 0, 0}), "l1");
}

TEST(OptimizerKind, NamesAndSlotsMatch) {
  for (uint32_t kind = 0; kind <= 12; ++kind) {
    const OptimizerKind expected = static_cast<OptimizerKind>(kind);
    const Result<OptimizerKind> parsed = OptimizerKindFromName(OptimizerKindName(expected));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, expected);
  }
  EXPECT_FALSE(OptimizerKindFromName("lamb").ok());
  EXPECT_FALSE(IsOptimizerKind(13));
  EXPECT_EQ(SlotCount(OptimizerKind::kSgd), 0);
  EXPECT_STREQ(SlotName(OptimizerKind::kAdagrad, 0), "accumulator");
  EXPECT_STREQ(SlotName(OptimizerKind::kAdam, 1), "v");
  EXPECT_STREQ(SlotName(OptimizerKind::kAdam, 2), "unknown");
  EXPECT_STREQ(SlotName(OptimizerKind::kAmsgrad, 2), "v_hat");
  EXPECT_STREQ(SlotName(OptimizerKind::kRmspropCentered, 1), "average_gradient");
  EXPECT_STREQ(SlotName(OptimizerKind::kRmspropCenteredMomentum, 1), "momentum");
  EXPECT_STREQ(SlotName(OptimizerKind::kRowWiseAdagrad, 0), "accumulator");
  EXPECT_EQ(SlotWidth(OptimizerKind::kAdam, 1, 17), 17u);
  EXPECT_EQ(SlotWidth(OptimizerKind::kRowWiseAdagrad, 0, 17), 1u);
  EXPECT_EQ(SlotWidth(OptimizerKind::kRowWiseAdagrad, 1, 17), 0u);
}

}  // namespace
}  // namespace tsps
