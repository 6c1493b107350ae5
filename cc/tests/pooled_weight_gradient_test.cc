#include "core/gradients/pooled_weight_gradient.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "executor/eigen_executor.h"

namespace tsps {
namespace {

constexpr size_t kDim = 19;  // not a multiple of any vector

struct Bagged {
  std::vector<std::vector<float>> table;
  std::vector<const float*> rows;
  std::vector<int32_t> inverse;
  std::vector<int64_t> splits = {0};
  std::vector<float> weights, gradients;
  Combiner combiner;

  Bagged(size_t n_bags, Combiner combiner) : combiner(combiner) {
    uint32_t state = 12345;
    const auto next = [&] { return state = state * 1664525u + 1013904223u; };
    const auto real = [&] { return static_cast<float>(next() >> 8) / (1 << 24) - 0.3f; };
    for (int k = 0; k < 23; ++k) {
      table.emplace_back(kDim);
      for (float& x : table.back()) x = real();
    }
    for (const auto& row : table) rows.push_back(row.data());
    for (size_t b = 0; b < n_bags; ++b) {
      for (size_t i = 0; i < b % 5; ++i) {  // every fifth bag is empty
        inverse.push_back(static_cast<int32_t>(next() >> 8) % 23);
        weights.push_back(real());
      }
      splits.push_back(static_cast<int64_t>(inverse.size()));
      for (size_t d = 0; d < kDim; ++d) gradients.push_back(real());
    }
  }

  size_t n_bags() const { return splits.size() - 1; }
  BagSpan span() const {
    return {inverse.data(), splits.data(), n_bags(), weights.data(), combiner};
  }
  std::vector<float> Gradient(Executor& executor) const {
    std::vector<float> out(weights.size(), -777);
    PooledWeightGradient(span(), rows.data(), kDim, gradients.data(), out.data(), executor);
    return out;
  }
  double Loss() const {
    SerialExecutor serial;
    std::vector<float> pooled(n_bags() * kDim);
    PoolBags(span(), rows.data(), kDim, pooled.data(), serial);
    double loss = 0;
    for (size_t i = 0; i < pooled.size(); ++i) loss += double(pooled[i]) * gradients[i];
    return loss;
  }
};

class PooledWeightGradientTest : public testing::TestWithParam<Combiner> {};

TEST_P(PooledWeightGradientTest, IsTheSlopeOfPoolBags) {
  SerialExecutor serial;
  Bagged bags(10, GetParam());
  for (float& weight : bags.weights) weight = 0.5f + weight * weight;  // no divisor near 0
  const std::vector<float> gradient = bags.Gradient(serial);
  for (size_t i = 0; i < bags.weights.size(); ++i) {
    const float weight = bags.weights[i], h = 1e-2f;
    bags.weights[i] = weight + h;
    const double above = bags.Loss();
    bags.weights[i] = weight - h;
    const double below = bags.Loss();
    bags.weights[i] = weight;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * h), 3e-3) << i;
  }
}

TEST_P(PooledWeightGradientTest, IsTheSameOnAnyNumberOfThreads) {
  SerialExecutor serial;
  EigenExecutor parallel(4);
  const Bagged bags(3000, GetParam());
  EXPECT_EQ(bags.Gradient(serial), bags.Gradient(parallel));
}

TEST_P(PooledWeightGradientTest, IsZeroWhereTheDivisorIs) {
  if (GetParam() == Combiner::kSum) return;
  SerialExecutor serial;
  Bagged bags(4, GetParam());  // bags of 0, 1, 2, 3 items
  for (float& weight : bags.weights) weight = 0;
  EXPECT_EQ(bags.Gradient(serial), std::vector<float>(bags.weights.size(), 0));
}

INSTANTIATE_TEST_SUITE_P(Combiners, PooledWeightGradientTest,
                         testing::Values(Combiner::kSum, Combiner::kMean, Combiner::kSqrtn));

}  // namespace
}  // namespace tsps
