#include "core/group/row_number_cache.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "core/group/row_gather.h"
#include "core/table/layout.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

TEST(RowNumberCache, GivesThemOnceForTheSameKeysAndState) {
  RowNumberCache cache;
  const std::vector<int64_t> keys = {5, 7, 9}, reordered_keys = {5, 9, 7};
  const auto put = [&] { cache.Put(1, {10, keys, {0, kAbsentRow, 2}, {}}); };
  put();
  EXPECT_TRUE(cache.Take(1, 10, keys.data(), 3).rows.empty()) << "the cache is not enabled";
  cache.Enable(true);
  put();
  EXPECT_TRUE(cache.Take(2, 10, keys.data(), 3).rows.empty());
  EXPECT_EQ(cache.Take(1, 10, keys.data(), 3).rows, (std::vector<uint32_t>{0, kAbsentRow, 2}));
  EXPECT_TRUE(cache.Take(1, 10, keys.data(), 3).rows.empty());
  for (const auto& [epoch, lookup_keys, n] :
       {std::tuple<uint64_t, const std::vector<int64_t>*, size_t>{11, &keys, 3},
        {9, &keys, 3},
        {10, &reordered_keys, 3},
        {10, &keys, 2}}) {
    put();
    EXPECT_TRUE(cache.Take(1, epoch, lookup_keys->data(), n).rows.empty());
  }
  put();
  cache.Enable(false);
  cache.Enable(true);
  EXPECT_TRUE(cache.Take(1, 10, keys.data(), 3).rows.empty());
}

class RememberedRowsTest : public GroupTest {
 protected:
  // The result of a lookup of the keys, in the form that the lookup kernels give to the cache.
  RowNumberCache::Found LookUp(int table, const std::vector<int64_t>& keys) {
    RowGather gather(*group_->Config(table), table, keys.data(), keys.size(),
                     group_->row_numbers().enabled());
    const Status status = group_->Read([&](const ReadView& view) {
      gather.Find(view, executor_);
      return Status();
    });
    EXPECT_TRUE(status.ok());
    RowNumberCache::Found result = gather.TakeFound();
    result.keys = keys;
    return result;
  }
};

TEST_F(RememberedRowsTest, AStepUsesThemAndChangesTheSameRows) {
  const int a = AddTable("a", 4);
  const int b = AddTable("b", 4);
  std::vector<int64_t> keys(500);
  std::iota(keys.begin(), keys.end(), -100);
  for (int k = 0; k < 5; ++k) {
    // The last hundred keys are new in each round.
    for (size_t i = 400; i < 500; ++i) keys[i] += 1000;
    group_->row_numbers().Put(a, LookUp(a, keys));
    ASSERT_TSPS_OK(Step(a, keys, 0.5f));
    ASSERT_TSPS_OK(Step(b, keys, 0.5f));
  }
  const Image image = ReadImage(*group_);
  ASSERT_EQ(image.tables[0].size(), 900u);
  for (const auto& [key, row] : image.tables[1]) {
    const std::vector<float> first = LookupRow(*group_, a, key);
    // The tables differ in their salt, so the changes by the steps are compared.
    std::vector<float> initial_a(4), initial_b(4);
    InitialRow(ConfigOf(*group_, a).initializer, key, 4, initial_a.data());
    InitialRow(ConfigOf(*group_, b).initializer, key, 4, initial_b.data());
    for (size_t d = 0; d < 4; ++d) {
      ASSERT_NEAR(first[d] - initial_a[d], row[d] - initial_b[d], 1e-6) << key;
    }
  }
  ASSERT_TSPS_OK(group_->Verify(a));
}

// Wrong row numbers, which are those of another key, show whether a step uses them.
TEST_F(RememberedRowsTest, TheyAreUsedAsLongAsNothingHasChanged) {
  const int t = AddTable("t", 4);
  ASSERT_TSPS_OK(Step(t, {1, 2, 3}, 1.0f));
  const std::vector<float> first = LookupRow(*group_, t, 1), second = LookupRow(*group_, t, 2);
  RowNumberCache::Found wrong = LookUp(t, {1});
  wrong.rows = LookUp(t, {2}).rows;
  group_->row_numbers().Put(t, wrong);
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
  EXPECT_EQ(LookupRow(*group_, t, 1), first);
  EXPECT_EQ(LookupRow(*group_, t, 2)[0], second[0] - 1.0f);
  // They were found before the last step, so they are too old for the next one.
  group_->row_numbers().Put(t, wrong);
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
  EXPECT_EQ(LookupRow(*group_, t, 1)[0], first[0] - 1.0f);
  // After an erase, the row may belong to another key.
  RowNumberCache::Found before = LookUp(t, {1});
  const std::vector<int64_t> erased = {1};
  ASSERT_EQ(*writer_->Erase(t, erased.data(), 1), 1u);
  group_->row_numbers().Put(t, before);
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
  ASSERT_TSPS_OK(group_->Verify(t));
  EXPECT_EQ(ReadImage(*group_).tables[0].size(), 3u);
}

TEST_F(RememberedRowsTest, WhoeverIsNotTheWriterKeepsNone) {
  const int t = AddTable("t", 4);
  writer_.reset();
  EXPECT_FALSE(group_->row_numbers().enabled());
  EXPECT_TRUE(LookUp(t, {1, 2}).rows.empty());
}

}  // namespace
}  // namespace tsps
