#include "core/gradients/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/gradients/key_count.h"
#include "executor/eigen_executor.h"

namespace tsps {
namespace {

struct Merged {
  MergedGradients keys;
  std::vector<float> rows;
};

Merged Merge(const std::vector<int64_t>& keys, const std::vector<int32_t>& counts,
             const std::vector<float>& gradients, size_t dim, Reduction reduction,
             int64_t world_size, Executor& executor) {
  Merged merged;
  // Two sets must give the same result as one set with all gradients.
  const size_t cut = keys.size() / 3;
  const int32_t* const count = counts.empty() ? nullptr : counts.data();
  const std::vector<GradientSet> sets = {
      {keys.data(), count, gradients.data(), cut},
      {keys.data() + cut, count == nullptr ? nullptr : count + cut, gradients.data() + cut * dim,
       keys.size() - cut}};
  EXPECT_TRUE(MergeKeys(sets, reduction, &merged.keys).ok());
  merged.rows.assign(merged.keys.keys.size() * dim, 99.0f);
  EXPECT_TRUE(
      MergeRows(sets, dim, merged.keys, reduction, world_size, merged.rows.data(), executor).ok());
  return merged;
}

// The published example of mode A: five keys on three ranks; e and g occur on two of them, f and h
// on one, i on all three.
//   rank 0: e g i     rank 1: e f i     rank 2: g h i
class WorkedExample : public ::testing::Test {
 protected:
  const std::vector<int64_t> keys_ = {'e', 'g', 'i', 'e', 'f', 'i', 'g', 'h', 'i'};
  const std::vector<float> gradients_ = {1,  10, 2,  20, 3,  30, 4,  40, 5,
                                         50, 6,  60, 7,  70, 8,  80, 9,  90};
  SerialExecutor executor_;

  std::map<char, std::vector<float>> Reduce(Reduction reduction) {
    const Merged merged = Merge(keys_, {}, gradients_, 2, reduction, 3, executor_);
    std::map<char, std::vector<float>> rows;
    for (size_t k = 0; k < merged.keys.keys.size(); ++k) {
      rows[static_cast<char>(merged.keys.keys[k])] = {merged.rows[2 * k], merged.rows[2 * k + 1]};
    }
    return rows;
  }
};

using Rows = std::map<char, std::vector<float>>;

TEST_F(WorkedExample, FrequencyDividesByTheRanksOfTheKey) {
  EXPECT_EQ(
      Reduce(Reduction::kFrequency),
      (Rows{{'e', {2.5f, 25}}, {'f', {5, 50}}, {'g', {4.5f, 45}}, {'h', {8, 80}}, {'i', {6, 60}}}));
}

TEST_F(WorkedExample, AverageDividesByAllRanks) {
  EXPECT_EQ(Reduce(Reduction::kAverage), (Rows{{'e', {5 / 3.0f, 50 / 3.0f}},
                                               {'f', {5 / 3.0f, 50 / 3.0f}},
                                               {'g', {3, 30}},
                                               {'h', {8 / 3.0f, 80 / 3.0f}},
                                               {'i', {6, 60}}}));
}

TEST_F(WorkedExample, SumAndLocalDoNotDivide) {
  const Rows sums = {
      {'e', {5, 50}}, {'f', {5, 50}}, {'g', {9, 90}}, {'h', {8, 80}}, {'i', {18, 180}}};
  EXPECT_EQ(Reduce(Reduction::kSum), sums);
  EXPECT_EQ(Reduce(Reduction::kLocal), sums);
}

TEST_F(WorkedExample, CountsAreTheFrequencies) {
  const Merged merged = Merge(keys_, {}, gradients_, 2, Reduction::kFrequency, 3, executor_);
  std::map<char, int32_t> counts;
  for (size_t k = 0; k < merged.keys.keys.size(); ++k) {
    counts[static_cast<char>(merged.keys.keys[k])] = merged.keys.counts[k];
  }
  EXPECT_EQ(counts, (std::map<char, int32_t>{{'e', 2}, {'f', 1}, {'g', 2}, {'h', 1}, {'i', 3}}));
}

TEST_F(WorkedExample, MergingNodesFirstGivesTheSame) {
  // Ranks 0 and 1 are one node: their leader sends sums and counts.
  const Merged node =
      Merge({'e', 'g', 'i', 'e', 'f', 'i'}, {}, {1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}, 2,
            Reduction::kSum, 2, executor_);
  std::vector<int64_t> keys = node.keys.keys;
  std::vector<int32_t> counts = node.keys.counts;
  std::vector<float> gradients = node.rows;
  keys.insert(keys.end(), {'g', 'h', 'i'});
  counts.insert(counts.end(), {1, 1, 1});
  gradients.insert(gradients.end(), {7, 70, 8, 80, 9, 90});
  const Merged merged = Merge(keys, counts, gradients, 2, Reduction::kFrequency, 3, executor_);
  const Rows expected = Reduce(Reduction::kFrequency);
  ASSERT_EQ(merged.keys.keys.size(), expected.size());
  for (size_t k = 0; k < merged.keys.keys.size(); ++k) {
    EXPECT_EQ((std::vector<float>{merged.rows[2 * k], merged.rows[2 * k + 1]}),
              expected.at(static_cast<char>(merged.keys.keys[k])));
  }
}

TEST(MergeKeys, ALocalMergeCountsAKeyOncePerRankNotPerCall) {
  SerialExecutor executor;
  const Merged merged = Merge({7, 8, 7}, {}, {1, 2, 3}, 1, Reduction::kLocal, 1, executor);
  EXPECT_EQ(merged.keys.counts, (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(merged.rows, (std::vector<float>{4, 2}));
}

TEST(MergeRows, AddsInRankOrderInFloat32) {
  // In this order rounding loses each 1; in any other order some of them survive.
  SerialExecutor executor;
  const Merged merged =
      Merge({1, 1, 1, 1}, {}, {16777216.0f, 1, 1, -16777216.0f}, 1, Reduction::kSum, 4, executor);
  EXPECT_EQ(merged.rows, (std::vector<float>{0}));
}

TEST(MergeRows, DividesTruly) {
  // 7 * (1 / 3.0f) is another float than 7 / 3.0f.
  SerialExecutor executor;
  const Merged merged = Merge({1}, {3}, {7}, 1, Reduction::kFrequency, 4, executor);
  EXPECT_EQ(merged.rows, (std::vector<float>{7 / 3.0f}));
}

TEST(Merge, GivesTheSameBitsOnAnyThreads) {
  SerialExecutor serial;
  EigenExecutor parallel(4);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const size_t n = 30000, dim = 9;
  std::vector<int64_t> keys(n);
  std::vector<int32_t> counts(n);
  std::vector<float> gradients(n * dim);
  for (int64_t& key : keys) key = static_cast<int64_t>(random() % 9000) - 4500;
  for (int32_t& count : counts) count = 1 + random() % 7;
  for (float& x : gradients) x = normal(random);
  for (Reduction reduction :
       {Reduction::kFrequency, Reduction::kAverage, Reduction::kSum, Reduction::kLocal}) {
    const Merged a = Merge(keys, counts, gradients, dim, reduction, 5, serial);
    const Merged b = Merge(keys, counts, gradients, dim, reduction, 5, parallel);
    EXPECT_EQ(a.keys.keys, b.keys.keys);
    EXPECT_EQ(a.keys.counts, b.keys.counts);
    EXPECT_EQ(a.rows, b.rows);
  }
}

TEST(Merge, OfNothingIsNothing) {
  SerialExecutor executor;
  const Merged merged = Merge({}, {}, {}, 4, Reduction::kFrequency, 2, executor);
  EXPECT_TRUE(merged.keys.keys.empty());
  EXPECT_TRUE(merged.keys.counts.empty());
}

TEST(Merge, OccurrencesAreAddedAndDivideNothing) {
  SerialExecutor executor;
  const std::vector<int64_t> keys = {5, 6, 7, 5, 6, 5};
  const std::vector<int32_t> counts = {CountOfOneRank(2),  CountOfOneRank(1),   CountOfOneRank(999),
                                       CountOfOneRank(40), CountOfOneRank(254), CountOfOneRank(1)};
  const std::vector<float> gradients = {1, 2, 4, 8, 16, 32};
  const Merged merged = Merge(keys, counts, gradients, 1, Reduction::kFrequency, 3, executor);
  ASSERT_EQ(merged.keys.keys, (std::vector<int64_t>{5, 6, 7}));
  EXPECT_EQ(merged.rows, (std::vector<float>{(1 + 8 + 32) / 3.0f, (2 + 16) / 2.0f, 4}));
  std::vector<int32_t> ranks;
  std::vector<uint32_t> occurrences;
  for (const int32_t count : merged.keys.counts) {
    ranks.push_back(RanksOf(count));
    occurrences.push_back(OccurrencesOf(count));
  }
  EXPECT_EQ(ranks, (std::vector<int32_t>{3, 2, 1}));
  EXPECT_EQ(occurrences, (std::vector<uint32_t>{43, 255, 255}));
}

TEST(Merge, RefusesWhatCannotBeRightAndNamesIt) {
  SerialExecutor executor;
  MergedGradients merged;
  const int64_t keys[] = {5, 6, 5};
  const float gradients[3] = {};
  for (const std::vector<int32_t>& counts : {std::vector<int32_t>{1, 1, 0},
                                             {1, 1, -2},
                                             {1, 1, INT32_MAX},
                                             {1, 1, kMostRanks},
                                             {1, 1, 256 << 16 | 1},
                                             {1, 1, 3 << 16}}) {
    const Status status =
        MergeKeys({{keys, counts.data(), gradients, 3}}, Reduction::kFrequency, &merged);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("counts[2] of key 5"), std::string::npos) << status.message();
  }
  const std::vector<GradientSet> sets = {{keys, nullptr, gradients, 3}};
  ASSERT_TRUE(MergeKeys(sets, Reduction::kAverage, &merged).ok());
  float reduced[2];
  EXPECT_EQ(MergeRows(sets, 1, merged, Reduction::kAverage, 0, reduced, executor).code(),
            Code::kInvalidArgument);
  merged.inverse[1] = 9;
  EXPECT_EQ(MergeRows(sets, 1, merged, Reduction::kSum, 1, reduced, executor).code(),
            Code::kInvalidArgument);
}

TEST(FirstNonFiniteRow, FindsTheFirstOfSeveralAnywhere) {
  SerialExecutor serial;
  EigenExecutor parallel(4);
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t dim : {1, 3, 64, 5000}) {
    const size_t n = dim == 5000 ? 40 : 9000;
    std::vector<float> rows(n * dim, std::numeric_limits<float>::max());
    EXPECT_EQ(FirstNonFiniteRow(rows.data(), n, dim, serial), -1);
    EXPECT_EQ(FirstNonFiniteRow(rows.data(), n, dim, parallel), -1);
    for (size_t bad : {n - 1, n / 2, n / 3, size_t{1}, size_t{0}}) {
      rows[bad * dim + dim - 1] = bad % 3 == 0 ? nan : bad % 3 == 1 ? infinity : -infinity;
      EXPECT_EQ(FirstNonFiniteRow(rows.data(), n, dim, serial), static_cast<int64_t>(bad));
      EXPECT_EQ(FirstNonFiniteRow(rows.data(), n, dim, parallel), static_cast<int64_t>(bad));
    }
  }
  EXPECT_EQ(FirstNonFiniteRow(nullptr, 0, 4, serial), -1);
  EXPECT_EQ(FirstNonFiniteRow(nullptr, 4, 0, serial), -1);
}

TEST(Reduction, IsParsedFromItsName) {
  EXPECT_EQ(*ReductionFromName("frequency"), Reduction::kFrequency);
  EXPECT_EQ(*ReductionFromName("average"), Reduction::kAverage);
  EXPECT_EQ(*ReductionFromName("sum"), Reduction::kSum);
  EXPECT_EQ(*ReductionFromName("local"), Reduction::kLocal);
  EXPECT_FALSE(ReductionFromName("median").ok());
}

}  // namespace
}  // namespace tsps
