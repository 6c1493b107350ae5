// Which rows of a tiered table leave memory.
#include "core/group/demotions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "core/table/index.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

class DemotionsTest : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 50'000;

  DemotionsTest() : generations_(kRows, 1) { demotions_.Resize(kRows); }

  std::vector<uint32_t> Choose(size_t n, const std::vector<uint32_t>& kept = {}) {
    return demotions_.Choose(n, {generations_.data(), announced_.get(), step_}, kept);
  }

  TempDir dir_;
  std::vector<uint32_t> generations_;
  std::unique_ptr<AnnouncedRows> announced_;
  uint64_t step_ = 7;
  Demotions demotions_;
};

TEST_F(DemotionsTest, RowsThatAreUsedOftenStay) {
  std::vector<uint32_t> used;  // one in three, in every step
  for (uint32_t row = 0; row < kRows; row += 3) used.push_back(row);
  for (int step = 0; step < 300; ++step) {
    demotions_.Used(used.data(), used.size());
    demotions_.NextStep();
    const std::vector<uint32_t> rows = Choose(500);
    ASSERT_EQ(rows.size(), 500u);
    ASSERT_EQ(std::set<uint32_t>(rows.begin(), rows.end()).size(), 500u);
    for (const uint32_t row : rows) ASSERT_NE(row % 3, 0u);
    demotions_.Taken(rows);  // their numbers are those of other keys now
  }
}

// The work of a step does not depend on the rows in memory: a slice is passed, then the next one.
TEST_F(DemotionsTest, OneRowAfterAnotherLeavesIfAllAreUsedAlike) {
  std::vector<bool> left(kRows);
  for (int step = 0; step < 60; ++step) {
    for (const uint32_t row : Choose(kRows / 60)) {
      left[row] = true;
      generations_[row] = kFreeRow;
    }
  }
  EXPECT_GT(std::count(left.begin(), left.end(), true), kRows * 9 / 10);
}

TEST_F(DemotionsTest, ReturnsWhatThereIs) {
  std::vector<uint32_t> kept;
  for (uint32_t row = 0; row < kRows; ++row) {
    if (row % 5 == 0) {
      kept.push_back(row);
    } else if (row % 5 == 1) {
      generations_[row] = kFreeRow;
    }
  }
  const std::vector<uint32_t> rows = Choose(kRows, kept);
  EXPECT_EQ(rows.size(), kRows * 3 / 5);
  for (const uint32_t row : rows) EXPECT_GE(row % 5, 2u);
  EXPECT_EQ(Choose(kRows).size(), kRows * 4 / 5);
  EXPECT_TRUE(Choose(0).empty());
}

TEST_F(DemotionsTest, AnnouncedRowsLeaveLast) {
  auto announced = AnnouncedRows::Create(dir_ / "", kRows);
  ASSERT_TRUE(announced.ok());
  announced_ = std::move(*announced);
  for (uint32_t row = 0; row < kRows; ++row) {
    if (row % 2 == 0) announced_->Announce(row, step_, 10);
  }
  for (const uint32_t row : Choose(kRows / 2)) EXPECT_EQ(row % 2, 1u);
  EXPECT_EQ(Choose(kRows / 2 + 100).size(), kRows / 2 + 100);
}

TEST(Demotions, ATableWithoutRowsHasNone) {
  Demotions demotions;
  EXPECT_TRUE(demotions.Choose(5, {nullptr, nullptr, 0}, {}).empty());
}

}  // namespace
}  // namespace tsps
