#include "core/tier/announced_rows.h"

#include <gtest/gtest.h>

#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr size_t kRows = 100;

class AnnouncedRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto rows = AnnouncedRows::Create(dir_ / ".", kRows);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    rows_ = std::move(*rows);
  }
  TempDir dir_;
  std::unique_ptr<AnnouncedRows> rows_;
};

TEST_F(AnnouncedRowsTest, ARowIsNeededUntilItsStep) {
  uint32_t row = 0;
  for (const uint64_t step : {0ull, 1ull, 65534ull, 65535ull, 65536ull, 1ull << 40}) {
    EXPECT_FALSE(rows_->IsNeeded(row, step));
    rows_->Announce(row, step, 3);
    rows_->Announce(row, step, 2);  // changes nothing: the row is needed for longer already
    for (uint64_t past = 0; past < 3; ++past) EXPECT_TRUE(rows_->IsNeeded(row, step + past));
    EXPECT_FALSE(rows_->IsNeeded(row, step + 3));
    EXPECT_FALSE(rows_->IsNeeded(row, step + 5000));
    EXPECT_FALSE(rows_->IsNeeded(++row, step));
  }
}

TEST_F(AnnouncedRowsTest, OtherProcessesSeeIt) {
  auto other_mapping = AnnouncedRows::Open(dir_ / ".", kRows);
  ASSERT_TRUE(other_mapping.ok()) << other_mapping.status().message();
  (*other_mapping)->Announce(5, 10, 4);
  EXPECT_TRUE(rows_->IsNeeded(5, 13));
}

TEST_F(AnnouncedRowsTest, WhatIsOutOfBoundsIsCutOff) {
  rows_->Announce(kRows, 0, 10);
  EXPECT_FALSE(rows_->IsNeeded(kRows, 0));
  rows_->Announce(1, 0, uint64_t{1} << 60);
  EXPECT_TRUE(rows_->IsNeeded(1, AnnouncedRows::kMostSteps - 1));
  EXPECT_FALSE(rows_->IsNeeded(1, AnnouncedRows::kMostSteps));
}

}  // namespace
}  // namespace tsps
