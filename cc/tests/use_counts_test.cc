#include "core/tier/use_counts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tsps {
namespace {

const auto kAnyRow = [](uint32_t) { return true; };

TEST(UseCounts, RowsWithTheLowestCountsLeave) {
  constexpr uint32_t kRows = 5000;
  UseCounts counts;
  counts.Resize(kRows);
  std::mt19937 random(1);
  std::vector<uint32_t> order(kRows);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  for (uint32_t i = 0; i < kRows; ++i) {
    for (uint32_t use = 0; use < i % 50; ++use) counts.Count(&order[i], 1);
  }
  for (const size_t n : {size_t{1}, size_t{99}, size_t{100}, size_t{1234}, size_t{4999}}) {
    std::vector<uint32_t> lowest;
    counts.Lowest(n, kAnyRow, &lowest);
    ASSERT_EQ(lowest.size(), n);
    std::vector<bool> is_lowest(kRows);
    float highest = 0;
    for (const uint32_t row : lowest) {
      EXPECT_FALSE(is_lowest[row]);
      is_lowest[row] = true;
      highest = std::max(highest, counts.Of(row));
    }
    for (uint32_t row = 0; row < kRows; ++row) {
      EXPECT_TRUE(is_lowest[row] || counts.Of(row) >= highest) << row;
    }
  }
}

TEST(UseCounts, RowsThatMustStayDoAndFewerThanAskedForMayGo) {
  UseCounts counts;
  counts.Resize(100);
  std::vector<uint32_t> lowest;
  counts.Lowest(60, [](uint32_t row) { return row % 2 == 0; }, &lowest);
  EXPECT_EQ(lowest.size(), 50u);
  EXPECT_TRUE(std::all_of(lowest.begin(), lowest.end(), [](uint32_t row) { return row % 2 == 0; }));
  lowest.clear();
  counts.Lowest(0, kAnyRow, &lowest);
  EXPECT_TRUE(lowest.empty());
}

TEST(UseCounts, OldUsesCountLessAndLessHoweverLongItGoesOn) {
  UseCounts counts;
  counts.Resize(3);
  const uint32_t first = 0, second = 1;
  for (int use = 0; use < 64; ++use) counts.Count(&first, 1);
  for (int pass = 0; pass < 5; ++pass) counts.Decay(0.5f);
  counts.Count(&second, 1);
  EXPECT_FLOAT_EQ(counts.Of(0), 2.0f);
  EXPECT_FLOAT_EQ(counts.Of(1), 1.0f);
  for (int pass = 0; pass < 500; ++pass) {
    counts.Decay(0.5f);
    counts.Count(&second, 1);
  }
  EXPECT_NEAR(counts.Of(1), 2.0f, 1e-5f);  // 1 + 1/2 + 1/4 ...
  EXPECT_LT(counts.Of(0), 1e-30f);
  counts.Forget(1);
  EXPECT_EQ(counts.Of(1), 0.0f);
  counts.Resize(10);
  EXPECT_EQ(counts.Of(9), 0.0f);
}

}  // namespace
}  // namespace tsps
