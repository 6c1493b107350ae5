#include "core/gradients/scaled_copy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "executor/eigen_executor.h"

namespace tsps {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Copies of the given sizes, from one buffer to a separate buffer each.
struct Buffers {
  explicit Buffers(const std::vector<size_t>& sizes)
      : from(std::accumulate(sizes.begin(), sizes.end(), size_t{0})) {
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i % 1000) - 499.75f;
    const float* at = from.data();
    for (const size_t n : sizes) to.emplace_back(n + 1, -1.0f);
    for (size_t i = 0; i < sizes.size(); at += sizes[i++]) {
      copies.push_back({at, to[i].data(), sizes[i]});
    }
  }

  std::vector<float> from;
  std::vector<std::vector<float>> to;  // each has one more float, which must not change
  std::vector<FloatCopy> copies;
};

class ScaledCopyTest : public testing::TestWithParam<std::vector<size_t>> {};

TEST_P(ScaledCopyTest, ScalesEveryFloatOnce) {
  EigenExecutor executor(3);
  Buffers multiplied(GetParam()), divided(GetParam());
  CopyMultiplied(multiplied.copies, 0.3f, executor);
  CopyDivided(divided.copies, 0.3f, executor);
  size_t at = 0;
  for (size_t c = 0; c < GetParam().size(); ++c) {
    const size_t n = GetParam()[c];
    for (size_t i = 0; i < n; ++i, ++at) {
      ASSERT_EQ(multiplied.to[c][i], multiplied.from[at] * 0.3f) << c << " " << i;
      ASSERT_EQ(divided.to[c][i], divided.from[at] / 0.3f) << c << " " << i;
    }
    EXPECT_EQ(multiplied.to[c][n], -1.0f);
    EXPECT_EQ(divided.to[c][n], -1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ScaledCopyTest,
                         testing::Values(std::vector<size_t>{}, std::vector<size_t>{0, 0},
                                         std::vector<size_t>{1}, std::vector<size_t>{0, 3, 0, 5, 0},
                                         std::vector<size_t>{200000},
                                         std::vector<size_t>{7, 100000, 0, 1, 16384, 16384, 33},
                                         std::vector<size_t>(1000, 97)));

TEST(ScaledCopy, ZeroFactorsAndBadDivisorsGiveZeros) {
  SerialExecutor executor;
  const std::vector<float> from = {1, kNan, -kInfinity};
  for (const float divisor : {0.0f, kNan, kInfinity}) {
    std::vector<float> to(3, -1.0f);
    CopyDivided({{from.data(), to.data(), 3}}, divisor, executor);
    EXPECT_EQ(to, std::vector<float>(3));
  }
  std::vector<float> to(3, -1.0f);
  CopyMultiplied({{from.data(), to.data(), 3}}, 0.0f, executor);
  EXPECT_EQ(to, std::vector<float>(3));
  CopyMultiplied({{from.data(), to.data(), 3}}, 2.0f, executor);
  EXPECT_EQ(to[0], 2.0f);
  EXPECT_TRUE(std::isnan(to[1]));
  EXPECT_EQ(to[2], -kInfinity);
}

}  // namespace
}  // namespace tsps
