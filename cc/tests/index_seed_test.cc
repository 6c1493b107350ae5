// The seed of an index is random, so that keys cannot be chosen to collide. If somebody knows it, a
// bound limits the damage.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/group/group.h"
#include "core/table/index.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

// The inverse of HashKey.
int64_t KeyWithHash(uint64_t hash, uint64_t seed) {
  const auto inverse = [](uint64_t odd) {  // by Newton's iteration
    uint64_t x = odd;
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  uint64_t h = hash ^ hash >> 33;
  h *= inverse(0xc4ceb9fe1a85ec53ULL);
  h ^= h >> 33;
  h *= inverse(0xff51afd7ed558ccdULL);
  h ^= h >> 33;
  return static_cast<int64_t>(h ^ seed);
}

TEST(IndexSeed, TheHelperInvertsTheHash) {
  EXPECT_EQ(HashKey(KeyWithHash(0x123456789abcdef0ULL, 77), 77), 0x123456789abcdef0ULL);
}

class IndexSeedTest : public GroupTest {
 protected:
  uint64_t SeedOf(int table) { return StatsOf(table).index_seed; }
};

TEST_F(IndexSeedTest, GroupsOfOneNameHaveOtherSeedsAndOtherLives) {
  const int table = AddTable("t", 2);
  const uint64_t seed = SeedOf(table);
  const auto other_group = Group::Create(dir_ / "other", kUuid);
  ASSERT_TRUE(other_group.ok()) << other_group.status().message();
  EXPECT_NE((*other_group)->draw().index_seed, group_->draw().index_seed);
  EXPECT_NE((*other_group)->draw().life, group_->draw().life);
  Reopen();
  EXPECT_EQ(SeedOf(table), seed);
  EXPECT_NE(SeedOf(AddTable("u", 2)), seed);
}

TEST_F(IndexSeedTest, TheDirectoryStopsGrowingForKeysThatCollide) {
  const int table = AddTable("t", 2);
  const uint64_t seed = SeedOf(table);
  // The hashes of all keys have the same leading 40 bits. Without a bound each split would double
  // the directory until it had 2^26 entries.
  std::vector<int64_t> keys;
  for (uint64_t i = 0; i < 3 * kSegmentEntries; ++i) {
    keys.push_back(KeyWithHash(0xABCDEF1234ULL << 24 | i, seed));
  }
  const Status refused = Step(table, keys, 1.0f);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted) << refused.message();
  EXPECT_NE(refused.message().find("chosen to collide"), std::string::npos) << refused.message();
  const uint64_t bytes = group_->Bytes();
  EXPECT_LT(bytes, 16u << 20);
  // Nothing was changed, and other keys still train.
  EXPECT_EQ(group_->step(), 0u);
  ASSERT_TSPS_OK(Step(table, {1, 2, 3}, 1.0f));
  ASSERT_TSPS_OK(group_->Verify(table));
}

TEST_F(IndexSeedTest, ManyKeysFitWellBelowTheBound) {
  const int table = AddTable("t", 1);
  for (int64_t block = 0; block < 20; ++block) {
    std::vector<int64_t> keys;
    for (int64_t i = 0; i < 50000; ++i) keys.push_back(block * 50000 + i);
    ASSERT_TSPS_OK(writer_->Assign(table, keys.data(), std::vector<float>(keys.size()).data(),
                                   nullptr, keys.size(), executor_));
  }
  ASSERT_TSPS_OK(group_->Read([&](const ReadView& view) {
    const TableStats stats = view.Stats(table);
    EXPECT_EQ(stats.rows, 1000000u);
    return Status();
  }));
}

TEST_F(IndexSeedTest, ATableThatNeverHadARowTakesASeedOver) {
  const int table = AddTable("t", 2);
  const auto first_seed = writer_->TakeIndexSeed(table, 99);
  ASSERT_TRUE(first_seed.ok() && *first_seed);
  EXPECT_EQ(SeedOf(table), 99u);
  const auto reader = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader.ok());
  ASSERT_TSPS_OK(Step(table, {5, 6}, 1.0f));
  EXPECT_EQ(LookupRow(**reader, table, 5), LookupRow(*group_, table, 5));
  const auto second_seed = writer_->TakeIndexSeed(table, 100);
  ASSERT_TRUE(second_seed.ok());
  EXPECT_FALSE(*second_seed);
  EXPECT_EQ(SeedOf(table), 99u);
  ASSERT_TSPS_OK(group_->Verify(table));
}

}  // namespace
}  // namespace tsps
