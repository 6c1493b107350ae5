#include "core/tier/use_counts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tsps {
namespace {

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

// Rescaling takes several steps, in which counts of both kinds are compared.
TEST(UseCounts, CountsKeepTheirOrderWhileTheyAreRescaled) {
  constexpr uint32_t kRows = 400'000;
  UseCounts counts;
  counts.Resize(kRows);
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < kRows; row += 1000) rows.push_back(row);
  for (int pass = 0; pass < 200; ++pass) {
    counts.Count(rows.data(), rows.size());
    counts.Count(rows.data() + pass % 2, rows.size() - 1);
    counts.Decay(0.5f);
    for (size_t i = 2; i + 1 < rows.size(); ++i) {
      ASSERT_NEAR(counts.Of(rows[i]), counts.Of(rows[1]), 1e-5f) << pass << " " << i;
    }
    ASSERT_EQ(counts.Of(1), 0.0f);
  }
}

}  // namespace
}  // namespace tsps
