// Ranks of an exchange in one process, what they contribute, and what the leader should get.
#ifndef TFSPS_TESTS_NODE_EXCHANGE_FIXTURE_H_
#define TFSPS_TESTS_NODE_EXCHANGE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/exchange/node_exchange.h"
#include "core/gradients/key_count.h"

namespace tsps {

// A rank's gradients of some tables, of widths 3, 4, ... Every second table counts occurrences.
struct RankGradients {
  std::vector<std::vector<int64_t>> keys;
  std::vector<std::vector<int32_t>> counts;
  std::vector<std::vector<float>> rows;

  const int32_t* Counts(size_t table) const {
    return counts[table].empty() ? nullptr : counts[table].data();
  }

  std::vector<Contribution> Tables() const {
    std::vector<Contribution> tables;
    for (size_t t = 0; t < keys.size(); ++t) {
      tables.push_back({keys[t].data(), Counts(t), rows[t].data(), keys[t].size(), t + 3});
    }
    return tables;
  }
};

// What the leader read: [table].
struct Read {
  std::vector<std::vector<int64_t>> keys;
  std::vector<std::vector<int32_t>> counts;
  std::vector<std::vector<float>> rows;

  NodeExchange::Use Reader() {
    return [this](const std::vector<ReducedGradients>& merged) {
      keys.resize(merged.size());
      counts.resize(merged.size());
      rows.resize(merged.size());
      for (size_t t = 0; t < merged.size(); ++t) {
        EXPECT_EQ(merged[t].dim(), t + 3);
        for (const GradientSet& set : merged[t].sets()) {
          keys[t].insert(keys[t].end(), set.keys, set.keys + set.n);
          counts[t].insert(counts[t].end(), set.counts, set.counts + set.n);
          rows[t].insert(rows[t].end(), set.rows, set.rows + set.n * (t + 3));
        }
        EXPECT_EQ(merged[t].n(), keys[t].size());
      }
      return Status();
    };
  }
};

inline RankGradients Draw(uint64_t seed, const std::vector<size_t>& sizes) {
  std::mt19937_64 random(seed);
  RankGradients gradients;
  for (size_t t = 0; t < sizes.size(); ++t) {
    std::vector<int64_t> keys;
    for (size_t i = 0; i < sizes[t]; ++i) {
      keys.push_back(static_cast<int64_t>(random() % (2 * sizes[t] + 1)) - 5);
    }
    if (!keys.empty()) keys.push_back(INT64_MIN);
    if (sizes[t] > 10) keys.push_back(INT64_MAX);
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::shuffle(keys.begin(), keys.end(), random);
    std::vector<float> rows(keys.size() * (t + 3));
    for (float& x : rows) x = static_cast<float>(random() % 20001) / 1000 - 10;
    std::vector<int32_t> counts(t % 2 == 1 ? keys.size() : 0);
    for (int32_t& count : counts) count = CountOfOneRank(1 + random() % 300);
    gradients.keys.push_back(keys);
    gradients.counts.push_back(counts);
    gradients.rows.push_back(rows);
  }
  return gradients;
}

// The same merge without ranks, by key.
inline void ExpectMergedLikeOneList(const std::vector<RankGradients>& ranks, const Read& read) {
  SerialExecutor serial;
  for (size_t t = 0; t < read.keys.size(); ++t) {
    std::vector<GradientSet> sets;
    for (const RankGradients& rank : ranks) {
      sets.push_back(
          {rank.keys[t].data(), rank.Counts(t), rank.rows[t].data(), rank.keys[t].size()});
    }
    MergedGradients expected;
    ASSERT_TRUE(MergeKeys(sets, Reduction::kFrequency, &expected).ok());
    std::vector<float> rows(expected.keys.size() * (t + 3));
    ASSERT_TRUE(
        MergeRows(sets, t + 3, expected, Reduction::kFrequency, 1, rows.data(), serial).ok());
    ASSERT_EQ(read.keys[t].size(), expected.keys.size()) << "table " << t;
    std::map<int64_t, size_t> at;
    for (size_t i = 0; i < expected.keys.size(); ++i) at[expected.keys[i]] = i;
    ASSERT_EQ(at.size(), expected.keys.size());
    for (size_t i = 0; i < read.keys[t].size(); ++i) {
      ASSERT_TRUE(at.count(read.keys[t][i])) << "key " << read.keys[t][i];
      const size_t k = at[read.keys[t][i]];
      EXPECT_EQ(read.counts[t][i], expected.counts[k]);
      for (size_t d = 0; d < t + 3; ++d) {  // bit for bit: ranks are added in order
        EXPECT_EQ(read.rows[t][i * (t + 3) + d], rows[k * (t + 3) + d]);
      }
    }
  }
}

}  // namespace tsps

#endif  // TFSPS_TESTS_NODE_EXCHANGE_FIXTURE_H_
