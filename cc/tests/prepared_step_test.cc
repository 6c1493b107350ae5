// A step in two phases: Prepare does everything that can fail; Publish cannot fail.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "core/group/group.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

class PreparedStepTest : public GroupTest {
 protected:
  // Prepares a step of SGD with rate 1, which subtracts `g` from the rows. The test object owns the
  // arrays of the step.
  Status Prepare(int table, const std::vector<int64_t>& keys, float g, uint64_t step) {
    keys_ = keys;
    gradients_.assign(keys.size() * static_cast<size_t>(ConfigOf(*group_, table).dim), g);
    TableUpdate update;
    update.table = table;
    update.keys = keys_.data();
    update.gradients = gradients_.data();
    update.n = keys_.size();
    update.hyper = hyper_.data();
    update.n_hyper = 1;
    RowChanges changes;
    changes.step = step;
    changes.updates = {update};
    return writer_->Prepare(changes, executor_);
  }

  std::vector<int64_t> keys_;
  std::vector<float> gradients_;
  const std::vector<float> hyper_ = {1.0f};
};

TEST_F(PreparedStepTest, ShowsNothingUntilItIsCommitted) {
  const int table = AddTable("t", 4);
  ASSERT_TSPS_OK(Step(table, {1, 2}, 1.0f));
  const Image before = ReadImage(*group_);
  ASSERT_TSPS_OK(Prepare(table, {2, 3}, 1.0f, 2));
  EXPECT_EQ(ReadImage(*group_), before);
  writer_->Publish();
  const Image after = ReadImage(*group_);
  EXPECT_EQ(after.step, 2u);
  EXPECT_EQ(after.tables[0].size(), 3u);
  EXPECT_EQ(after.tables[0].at(1), before.tables[0].at(1));
  EXPECT_NE(after.tables[0].at(2), before.tables[0].at(2));
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(PreparedStepTest, AbortedLeavesNothingBehind) {
  const int table = AddTable("t", 4);
  ASSERT_TSPS_OK(Step(table, {1, 2}, 1.0f));
  const Image before = ReadImage(*group_);
  std::vector<int64_t> many(5000);  // the index grows for them
  std::iota(many.begin(), many.end(), 0);
  ASSERT_TSPS_OK(Prepare(table, many, 1.0f, 2));
  writer_->Abort();
  writer_->Abort();
  EXPECT_EQ(ReadImage(*group_), before);
  ASSERT_TSPS_OK(writer_->Verify());
  // A step of the same number, with other keys, is not affected.
  ASSERT_TSPS_OK(Step(table, {7}, 1.0f));
  EXPECT_EQ(ReadImage(*group_).tables[0].size(), 3u);
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(PreparedStepTest, UndoneAfterItIsSealedItLeavesNothingBehind) {
  const int table = AddTable("t", 4);
  ASSERT_TSPS_OK(Step(table, {1, 2}, 1.0f));
  std::vector<int64_t> many(20000);
  std::iota(many.begin(), many.end(), 0);
  for (int round = 0; round < 2; ++round) {
    const Image before = ReadImage(*group_);
    ASSERT_TSPS_OK(Prepare(table, many, 1.0f, group_->step() + 1));
    writer_->Write();
    writer_->Seal({group_->step() + 1, 7, 2});
    writer_->Abort();
    EXPECT_EQ(ReadImage(*group_), before);
    ASSERT_TSPS_OK(writer_->Verify());
    ASSERT_TSPS_OK(Step(table, {7, 100000 + round}, 1.0f));
  }
  EXPECT_EQ(ReadImage(*group_).tables[0].size(), 5u);
  Reopen();
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(PreparedStepTest, NothingElseIsWrittenInBetween) {
  const int table = AddTable("t", 2);
  ASSERT_TSPS_OK(Prepare(table, {1}, 1.0f, 1));
  const int64_t key = 1;
  const float row[2] = {};
  const auto refused = [](const Status& status) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find("step 1 of"), std::string::npos) << status.message();
  };
  refused(writer_->Assign(table, &key, row, nullptr, 1, executor_));
  refused(writer_->Erase(table, &key, 1).status());
  refused(writer_->SetStep(9));
  refused(writer_->CreateTable(MakeConfig("u", 2, 1)).status());
  refused(writer_->BindOptimizer(table, {}, true));
  refused(Step(table, {1}, 1.0f));
  writer_->Publish();
  ASSERT_TSPS_OK(writer_->Assign(table, &key, row, nullptr, 1, executor_));
  EXPECT_EQ(group_->step(), 1u);
}

TEST_F(PreparedStepTest, ARefusedOneIsNotPrepared) {
  const int table = AddTable("t", 2);
  EXPECT_EQ(Prepare(table, {1}, NAN, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(Prepare(table, {1}, 1.0f, 2).code(), Code::kFailedPrecondition);
  ASSERT_TSPS_OK(Step(table, {1}, 1.0f));
}

TEST_F(PreparedStepTest, IsGoneWithItsWriter) {
  const int table = AddTable("t", 2);
  ASSERT_TSPS_OK(Step(table, {1}, 1.0f));
  const Image before = ReadImage(*group_);
  ASSERT_TSPS_OK(Prepare(table, {1, 2}, 1.0f, 2));
  Reopen();
  EXPECT_EQ(ReadImage(*group_), before);
  ASSERT_TSPS_OK(writer_->Verify());
}

}  // namespace
}  // namespace tsps
