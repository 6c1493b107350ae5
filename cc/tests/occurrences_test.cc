#include "core/gradients/occurrences.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "core/gradients/key_count.h"

namespace tsps {
namespace {

class OccurrencesTest : public ::testing::Test {
 protected:
  bool Add(const std::vector<int64_t>& keys, const std::vector<std::vector<int32_t>>& features) {
    std::vector<Occurrences::Ids> ids;
    for (const std::vector<int32_t>& feature : features) {
      ids.push_back({feature.data(), feature.size()});
    }
    return occurrences_.Add(keys.data(), keys.size(), ids);
  }
  std::vector<uint32_t> Take(const std::vector<int64_t>& keys) {
    std::vector<int32_t> counts(keys.size());
    occurrences_.Take(keys.data(), keys.size(), counts.data());
    std::vector<uint32_t> result;
    for (const int32_t count : counts) {
      EXPECT_EQ(RanksOf(count), 1);
      result.push_back(OccurrencesOf(count));
    }
    return result;
  }

  Occurrences occurrences_;
};

using Counts = std::vector<uint32_t>;

TEST_F(OccurrencesTest, IdsOfAllFeaturesCount) {
  ASSERT_TRUE(Add({7, 9, 8}, {{0, 0, 1, 2}, {}, {2, 0}}));
  EXPECT_EQ(Take({7, 9, 8}), (Counts{3, 1, 2}));
  EXPECT_EQ(Take({7, 9, 8}), (Counts{1, 1, 1})) << "they were taken";
}

TEST_F(OccurrencesTest, LookupsOfAStepAreAddedUp) {
  ASSERT_TRUE(Add({7, 9}, {{0, 1, 1}}));
  ASSERT_TRUE(Add({9, 3}, {{0, 1}}));
  EXPECT_EQ(Take({3, 5, 9}), (Counts{1, 1, 3})) << "5 comes from the program, and 7 was dropped";
  EXPECT_EQ(Take({7}), (Counts{1}));
}

TEST_F(OccurrencesTest, TheKeysOfAStepMayHaveAnotherOrder) {
  ASSERT_TRUE(Add({7, 9}, {{0, 1, 1}}));
  EXPECT_EQ(Take({9, 7}), (Counts{2, 1}));
}

TEST_F(OccurrencesTest, ManyCountAs255) {
  ASSERT_TRUE(Add({7}, {std::vector<int32_t>(1000)}));
  EXPECT_EQ(Take({7}), (Counts{255}));
}

TEST_F(OccurrencesTest, PositionsOutsideOfTheKeysAreRefused) {
  EXPECT_FALSE(Add({7, 9}, {{0, 2}}));
  EXPECT_FALSE(Add({7, 9}, {{0, -1}}));
  EXPECT_EQ(Take({7, 9}), (Counts{1, 1}));
}

// A program that computes gradients and makes no step keeps one count per key.
TEST_F(OccurrencesTest, AnyNumberOfLookupsIsCountedExactly) {
  std::mt19937 random(3);
  std::map<int64_t, uint32_t> expected;
  for (int lookup = 0; lookup < 100; ++lookup) {
    const std::vector<int64_t> keys = {static_cast<int64_t>(random() % 50), 100, 101};
    ASSERT_TRUE(Add(keys, {{0, 2, 0}}));
    expected[keys[0]] += 2;
    ++expected[101];
  }
  std::vector<int64_t> keys;
  Counts counts;
  for (const auto& [key, count] : expected) {
    keys.push_back(key);
    counts.push_back(count);
  }
  EXPECT_EQ(Take(keys), counts);
}

}  // namespace
}  // namespace tsps
