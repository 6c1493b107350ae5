// The slots of a table belong to one optimizer, and steps of other optimizers are refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/group/group.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

class OptimizerUseTest : public GroupTest {
 protected:
  Status StepOf(int table, const OptimizerUse& optimizer) {
    return Step(table, {3}, 1.0f, optimizer);
  }
  float AccumulatorOf(int table, int64_t key) {
    float value = 0;
    EXPECT_TRUE(group_
                    ->Read([&](const ReadView& view) {
                      uint32_t row = 0;
                      view.FindRows(table, &key, 1, &row);
                      value = *view.Slot(table, 0, row);
                      return Status();
                    })
                    .ok());
    return value;
  }
  OptimizerKind kind_ = OptimizerKind::kAdagrad;
};

TEST_F(OptimizerUseTest, AStepRecordsItsOptimizerAndAnotherOnesIsRefused) {
  const int table = AddTable("t", 2, kind_);
  ASSERT_TSPS_OK(StepOf(table, {7, 1}));
  EXPECT_EQ(StatsOf(table).trained_by.id, 7u);
  EXPECT_EQ(StatsOf(table).trained_by.steps, 1u);
  const float before = AccumulatorOf(table, 3);
  const Status refused = StepOf(table, {8, 1});
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("table t: another optimizer"), std::string::npos)
      << refused.message();
  EXPECT_EQ(AccumulatorOf(table, 3), before);
  EXPECT_EQ(group_->step(), 1u);
  ASSERT_TSPS_OK(StepOf(table, {7, 2}));
  Reopen();
  EXPECT_EQ(StatsOf(table).trained_by.steps, 2u);
  EXPECT_EQ(StepOf(table, {8, 2}).code(), Code::kFailedPrecondition);
}

TEST_F(OptimizerUseTest, SlotsThatAreRenewedAreAnybodys) {
  const int table = AddTable("t", 2, kind_);
  ASSERT_TSPS_OK(StepOf(table, {7, 1}));
  const std::vector<float> row = LookupRow(*group_, table, 3);
  ASSERT_TSPS_OK(writer_->RenewSlots(table));
  EXPECT_EQ(AccumulatorOf(table, 3), 0.1f);
  EXPECT_EQ(LookupRow(*group_, table, 3), row);
  EXPECT_EQ(StatsOf(table).trained_by.id, 0u);
  ASSERT_TSPS_OK(StepOf(table, {8, 1}));
  EXPECT_EQ(StepOf(table, {7, 2}).code(), Code::kFailedPrecondition);
}

TEST_F(OptimizerUseTest, ATableWithoutSlotsIsAnybodys) {
  kind_ = OptimizerKind::kSgd;
  const int table = AddTable("t", 2, kind_);
  ASSERT_TSPS_OK(StepOf(table, {7, 1}));
  ASSERT_TSPS_OK(StepOf(table, {8, 1}));
  EXPECT_EQ(StatsOf(table).trained_by.id, 8u);
}

TEST_F(OptimizerUseTest, LoadedSlotsAreOfTheOptimizerThatIsNamed) {
  const int table = AddTable("t", 2, kind_);
  ASSERT_TSPS_OK(writer_->SetOptimizer(table, {9, 40}));
  EXPECT_EQ(StatsOf(table).trained_by.steps, 40u);
  EXPECT_EQ(StepOf(table, {7, 41}).code(), Code::kFailedPrecondition);
  ASSERT_TSPS_OK(StepOf(table, {9, 41}));
}

}  // namespace
}  // namespace tsps
