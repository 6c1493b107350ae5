#include "core/group/row_gather.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/table/initializer.h"
#include "executor/eigen_executor.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

class RowGatherTest : public GroupTest {
 protected:
  // Trains the rows of keys 0, 3, 6, ...; other keys stay absent.
  void Train(int table, int64_t n) {
    std::vector<int64_t> keys;
    for (int64_t key = 0; key < n; key += 3) keys.push_back(key);
    ASSERT_TSPS_OK(Step(table, keys, 0.5f));
  }
};

TEST_F(RowGatherTest, CopiesTrainedAndInitialRowsOnAnyNumberOfThreads) {
  constexpr int64_t kKeys = 20000;
  constexpr size_t kDim = 12;
  const int t = AddTable("t", kDim);
  Train(t, kKeys);
  std::vector<int64_t> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<int32_t> inverse;
  for (int64_t i = 0; i < 3 * kKeys; ++i) inverse.push_back(static_cast<int32_t>(i * 7919 % kKeys));

  std::vector<float> expected;
  for (const int32_t position : inverse) {
    std::vector<float> row(kDim);
    InitialRow(ConfigOf(*group_, t).initializer, position, kDim, row.data());
    for (float& x : row) expected.push_back(position % 3 == 0 ? x - 0.5f : x);
  }
  for (const int threads : {1, 4}) {
    EigenExecutor executor(threads);
    RowGather gather(*group_->Config(t), t, keys.data(), keys.size());
    std::vector<float> out(inverse.size() * kDim);
    ASSERT_TSPS_OK(group_->Read([&](const ReadView& view) {
      gather.Find(view, executor);
      gather.CopyRows(inverse.data(), inverse.size(), out.data(), executor);
      return Status();
    }));
    EXPECT_EQ(out, expected) << threads << " threads";
  }
}

class NarrowRowGatherTest : public RowGatherTest,
                            public ::testing::WithParamInterface<PlaneType> {};

INSTANTIATE_TEST_SUITE_P(Types, NarrowRowGatherTest,
                         ::testing::Values(PlaneType::kBfloat16, PlaneType::kFloat16));

// The output is so large that it is written past the caches, and rows are wider than one piece.
TEST_P(NarrowRowGatherTest, WidensRows) {
  constexpr size_t kWide = 516, kCopies = 9000;  // 18 MB
  TableConfig config = MakeConfig("narrow", kWide, 0);
  config.row_type = GetParam();
  const auto table = writer_->CreateTable(config);
  ASSERT_TRUE(table.ok()) << table.status().message();
  const std::vector<int64_t> keys = {4, -7, 9};
  std::vector<float> rows(2 * kWide);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 200) - 100;  // exact
  SerialExecutor serial;
  ASSERT_TSPS_OK(writer_->Assign(*table, keys.data(), rows.data(), nullptr, 2, serial));
  std::vector<int32_t> inverse(kCopies);
  for (size_t i = 0; i < kCopies; ++i) inverse[i] = static_cast<int32_t>(i * 7 % 3);
  RowGather gather(*group_->Config(*table), *table, keys.data(), keys.size());
  std::vector<float> out(kCopies * kWide);
  ASSERT_TSPS_OK(group_->Read([&](const ReadView& view) {
    gather.Find(view, serial);
    gather.CopyRows(inverse.data(), inverse.size(), out.data(), serial);
    return Status();
  }));
  for (size_t i = 0; i < kCopies; ++i) {
    const std::vector<float> expected =
        LookupRow(*group_, *table, keys[static_cast<size_t>(inverse[i])]);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), &out[i * kWide])) << i;
    if (i > 30) i += 997;
  }
}

TEST_F(RowGatherTest, FindsAgainWhenOtherKeysAreAbsent) {
  const int t = AddTable("t", 4);
  const std::vector<int64_t> keys = {1, 2, 3};
  RowGather gather(*group_->Config(t), t, keys.data(), keys.size());
  SerialExecutor serial;
  const auto find = [&] {
    return group_->Read([&](const ReadView& view) {
      gather.Find(view, serial);
      return Status();
    });
  };
  ASSERT_TSPS_OK(find());
  const float* const row = gather.Floats(serial)[1];
  const std::vector<float> initial(row, row + 4);
  ASSERT_TSPS_OK(Step(t, {2}, 0.25f));
  ASSERT_TSPS_OK(find());
  EXPECT_EQ(gather.Floats(serial)[1][3], initial[3] - 0.25f);
}

TEST_F(RowGatherTest, TakesKeysThatRepeat) {
  const int t = AddTable("t", 4);
  Train(t, 10);
  const std::vector<int64_t> keys = {3, 5, 3, -1, 5, 9, -1, 5};
  SerialExecutor serial;
  RowGather gather(*group_->Config(t), t, keys.data(), keys.size());
  std::vector<float> out(keys.size() * 4);
  ASSERT_TSPS_OK(group_->Read([&](const ReadView& view) {
    gather.Find(view, serial);
    gather.CopyAll(out.data(), serial);
    return Status();
  }));
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::vector<float> expected = LookupRow(*group_, t, keys[i]);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), &out[i * 4])) << i;
  }
}

TEST_F(RowGatherTest, TakesNoKeys) {
  const int t = AddTable("t", 4);
  RowGather gather(*group_->Config(t), t, nullptr, 0);
  SerialExecutor serial;
  ASSERT_TSPS_OK(group_->Read([&](const ReadView& view) {
    gather.Find(view, serial);
    gather.CopyRows(nullptr, 0, nullptr, serial);
    return Status();
  }));
}

}  // namespace
}  // namespace tsps
