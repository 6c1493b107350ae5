#include "core/gradients/segment_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/gradients/bags.h"
#include "executor/eigen_executor.h"

namespace tsps {
namespace {

struct Batch {
  std::vector<float> rows;
  std::vector<int32_t> inverse;
};

Batch RandomBatch(size_t n, size_t n_keys, size_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Batch batch;
  batch.rows.resize(n * dim);
  batch.inverse.resize(n);
  for (float& x : batch.rows) x = normal(random);
  for (int32_t& k : batch.inverse) {
    // Half of the rows belong to one key, as under Zipf; the last key gets none.
    k = random() % 2 ? 0 : static_cast<int32_t>(random() % std::max<size_t>(1, n_keys - 1));
  }
  return batch;
}

// Adds one row after another, in the order of the input.
std::vector<float> NaiveSum(const std::vector<Batch>& batches, size_t n_keys, size_t dim) {
  std::vector<float> sums(n_keys * dim);
  for (const Batch& batch : batches) {
    for (size_t i = 0; i < batch.inverse.size(); ++i) {
      for (size_t d = 0; d < dim; ++d) sums[batch.inverse[i] * dim + d] += batch.rows[i * dim + d];
    }
  }
  return sums;
}

TEST(SegmentSum, GivesTheBitsOfANaiveSumInInputOrderOnAnyThreads) {
  SerialExecutor serial;
  EigenExecutor parallel(4);
  for (size_t dim : {1, 3, 16, 17, 64}) {
    for (size_t n : {0, 1, 5, 1000, 20000}) {
      const size_t n_keys = n / 3 + 2;
      const std::vector<Batch> batches = {RandomBatch(n, n_keys, dim, 1),
                                          RandomBatch(0, n_keys, dim, 2),
                                          RandomBatch(n / 2, n_keys, dim, 3)};
      std::vector<GradientSpan> spans;
      for (const Batch& b : batches)
        spans.push_back({b.rows.data(), b.inverse.data(), b.inverse.size()});
      const std::vector<float> expected = NaiveSum(batches, n_keys, dim);
      for (Executor* executor :
           {static_cast<Executor*>(&serial), static_cast<Executor*>(&parallel)}) {
        std::vector<float> sums(n_keys * dim, 123.0f);
        ASSERT_TRUE(SegmentSum(spans, n_keys, dim, sums.data(), *executor).ok());
        ASSERT_EQ(sums, expected) << n << " rows of " << dim;
      }
    }
  }
}

TEST(SegmentSum, NoSpansGiveZeros) {
  SerialExecutor executor;
  std::vector<float> sums(6, 5.0f);
  ASSERT_TRUE(SegmentSum({}, 3, 2, sums.data(), executor).ok());
  EXPECT_EQ(sums, std::vector<float>(6, 0.0f));
}

TEST(SegmentSum, RefusesAnInverseOutOfRangeAndNamesIt) {
  SerialExecutor executor;
  const std::vector<float> rows(4, 1.0f);
  std::vector<float> sums(3);
  for (int32_t bad : {3, -1, INT32_MIN, INT32_MAX}) {
    const std::vector<int32_t> inverse = {0, 2, bad, 1};
    const Status status =
        SegmentSum({{rows.data(), inverse.data(), 4}}, 3, 1, sums.data(), executor);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("inverse[2]"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(std::to_string(bad)), std::string::npos);
  }
}

// Five bags over four unique rows of two floats; bag 1 and the last are empty, bag 3's weights
// cancel.
class Bags : public ::testing::Test {
 protected:
  const std::vector<float> unique_ = {1, 2, 10, 20, 100, 200, 1000, 2000};
  const std::vector<const float*> rows_ = {&unique_[0], &unique_[2], &unique_[4], &unique_[6]};
  const std::vector<int32_t> inverse_ = {0, 1, 2, 2, 3, 3};
  const std::vector<int64_t> splits_ = {0, 2, 2, 4, 6, 6};
  const std::vector<float> weights_ = {3, 4, 0.5f, 1, 2, -2};
  SerialExecutor executor_;

  BagSpan Span(Combiner combiner, bool weighted) const {
    return {inverse_.data(), splits_.data(), 5, weighted ? weights_.data() : nullptr, combiner};
  }
  std::vector<float> Pool(Combiner combiner, bool weighted) {
    std::vector<float> pooled(10, 77.0f);
    PoolBags(Span(combiner, weighted), rows_.data(), 2, pooled.data(), executor_);
    return pooled;
  }
};

TEST_F(Bags, ArePooledAsEmbeddingLookupSparsePools) {
  using V = std::vector<float>;
  const float root = std::sqrt(2.0f);
  EXPECT_EQ(Pool(Combiner::kSum, false), (V{11, 22, 0, 0, 200, 400, 2000, 4000, 0, 0}));
  EXPECT_EQ(Pool(Combiner::kMean, false), (V{5.5f, 11, 0, 0, 100, 200, 1000, 2000, 0, 0}));
  EXPECT_EQ(Pool(Combiner::kSqrtn, false), (V{11 / root, 22 / root, 0, 0, 200 / root, 400 / root,
                                              2000 / root, 4000 / root, 0, 0}));
  EXPECT_EQ(Pool(Combiner::kSum, true), (V{43, 86, 0, 0, 150, 300, 0, 0, 0, 0}));
  EXPECT_EQ(Pool(Combiner::kMean, true), (V{43 / 7.0f, 86 / 7.0f, 0, 0, 100, 200, 0, 0, 0, 0}));
  const float root_2 = std::sqrt(1.25f);
  EXPECT_EQ(Pool(Combiner::kSqrtn, true),
            (V{43 / 5.0f, 86 / 5.0f, 0, 0, 150 / root_2, 300 / root_2, 0, 0, 0, 0}));
}

TEST_F(Bags, BackwardIsTheTransposeOfForward) {
  // <pooled(rows), g> == <rows, backward(g)> for every combiner, because pooling is linear in the
  // rows.
  const std::vector<float> g = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    for (bool weighted : {false, true}) {
      const std::vector<float> pooled = Pool(combiner, weighted);
      std::vector<float> sums(8, 77.0f);
      ASSERT_TRUE(
          PooledSegmentSum({{Span(combiner, weighted), g.data()}}, 4, 2, sums.data(), executor_)
              .ok());
      double forward = 0, backward = 0;
      for (size_t i = 0; i < 10; ++i) forward += double{pooled[i]} * g[i];
      for (size_t i = 0; i < 8; ++i) backward += double{unique_[i]} * sums[i];
      EXPECT_NEAR(forward, backward, 1e-5 * std::abs(forward));
    }
  }
}

TEST_F(Bags, BackwardOfSeveralSpansAddsUpPerKey) {
  const std::vector<float> g = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  std::vector<float> sums(8);
  const BagSpan plain = Span(Combiner::kSum, false), mean = Span(Combiner::kMean, false);
  ASSERT_TRUE(
      PooledSegmentSum({{plain, g.data()}, {mean, g.data()}}, 4, 2, sums.data(), executor_).ok());
  EXPECT_EQ(sums, (std::vector<float>{1.5f, 3, 1.5f, 3, 15, 18, 21, 24}));
}

TEST_F(Bags, GiveTheSameBitsOnAnyThreads) {
  EigenExecutor parallel(4);
  const size_t n_bags = 5000, n_keys = 700, dim = 17;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<int64_t> splits = {0};
  for (size_t b = 0; b < n_bags; ++b) splits.push_back(splits.back() + random() % 40);
  const size_t n = static_cast<size_t>(splits.back());
  const Batch batch = RandomBatch(n, n_keys, 1, 9);
  std::vector<float> table(n_keys * dim), gradients(n_bags * dim);
  for (float& x : table) x = normal(random);
  for (float& x : gradients) x = normal(random);
  std::vector<const float*> rows;
  for (size_t k = 0; k < n_keys; ++k) rows.push_back(&table[k * dim]);
  for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    for (const float* weights : {static_cast<const float*>(nullptr), batch.rows.data()}) {
      const BagSpan span = {batch.inverse.data(), splits.data(), n_bags, weights, combiner};
      std::vector<float> pooled[2], sums[2];
      Executor* executors[] = {&executor_, &parallel};
      for (int e = 0; e < 2; ++e) {
        pooled[e].assign(n_bags * dim, 1.0f);
        sums[e].assign(n_keys * dim, 1.0f);
        PoolBags(span, rows.data(), dim, pooled[e].data(), *executors[e]);
        ASSERT_TRUE(
            PooledSegmentSum({{span, gradients.data()}}, n_keys, dim, sums[e].data(), *executors[e])
                .ok());
      }
      // Compared as bits: the square root of cancelling weights may be anything, but the same on
      // all threads.
      EXPECT_EQ(0, memcmp(pooled[0].data(), pooled[1].data(), pooled[0].size() * sizeof(float)));
      EXPECT_EQ(0, memcmp(sums[0].data(), sums[1].data(), sums[0].size() * sizeof(float)));
    }
  }
}

TEST_F(Bags, BadSplitsAndInversesAreRefused) {
  const auto refused = [](std::vector<int64_t> splits, size_t n_items, const char* part) {
    const Status status = ValidateSplits(splits.data(), splits.size(), n_items);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  EXPECT_TRUE(ValidateSplits(splits_.data(), splits_.size(), 6).ok());
  refused({}, 0, "at least one");
  refused({1, 2}, 2, "start at 0");
  refused({0, 3, 2}, 2, "splits[1]=3");
  refused({0, 2}, 3, "end at the number of items, 3");
  refused({0, -1}, 3, "not decrease");

  const std::vector<float> g(10, 1.0f);
  std::vector<float> sums(4);
  EXPECT_EQ(
      PooledSegmentSum({{Span(Combiner::kSum, false), g.data()}}, 2, 2, sums.data(), executor_)
          .code(),
      Code::kInvalidArgument);
}

TEST(Combiner, IsParsedFromItsName) {
  EXPECT_EQ(*CombinerFromName("sum"), Combiner::kSum);
  EXPECT_EQ(*CombinerFromName("mean"), Combiner::kMean);
  EXPECT_EQ(*CombinerFromName("sqrtn"), Combiner::kSqrtn);
  EXPECT_FALSE(CombinerFromName("max").ok());
}

}  // namespace
}  // namespace tsps
