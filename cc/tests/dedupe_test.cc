#include "core/gradients/dedupe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

namespace tsps {
namespace {

struct Deduped {
  std::vector<int64_t> keys;
  std::vector<int32_t> inverse;  // of all spans, one after another
};

// Cuts `ids` into `pieces` spans.
Deduped Deduplicate(const std::vector<int64_t>& ids, size_t pieces) {
  Deduped result;
  result.inverse.assign(ids.size(), -1);
  std::vector<IdSpan> spans;
  for (size_t p = 0; p < pieces; ++p) {
    const size_t begin = ids.size() * p / pieces, end = ids.size() * (p + 1) / pieces;
    spans.push_back({ids.data() + begin, end - begin, result.inverse.data() + begin});
  }
  result.keys = Dedupe(spans);
  return result;
}

void ExpectMatchesModel(const std::vector<int64_t>& ids, const Deduped& deduped) {
  std::unordered_map<int64_t, int32_t> model;
  for (int64_t id : ids) model.emplace(id, static_cast<int32_t>(model.size()));
  ASSERT_EQ(deduped.keys.size(), model.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_GE(deduped.inverse[i], 0);
    ASSERT_LT(static_cast<size_t>(deduped.inverse[i]), deduped.keys.size());
    ASSERT_EQ(deduped.keys[deduped.inverse[i]], ids[i]) << i;
  }
  for (const auto& [key, number] : model) ASSERT_EQ(deduped.keys[number], key);
}

TEST(Dedupe, MatchesAModelAtEverySizeAndCut) {
  std::mt19937_64 random(1);
  for (size_t n : {0, 1, 2, 5, 6, 7, 15, 16, 17, 18, 100, 4095, 4096, 4097, 16384, 16385, 70000}) {
    for (int64_t range : {int64_t{1}, int64_t{10}, int64_t{1000}, INT64_MAX}) {
      std::vector<int64_t> ids(n);
      std::uniform_int_distribution<int64_t> id(-range / 2, range / 2);
      for (int64_t& x : ids) x = id(random);
      const Deduped deduped = Deduplicate(ids, 1);
      ExpectMatchesModel(ids, deduped);
      for (size_t pieces : {2, 7, 26}) {
        const Deduped pieced = Deduplicate(ids, pieces);
        EXPECT_EQ(pieced.keys, deduped.keys);
        EXPECT_EQ(pieced.inverse, deduped.inverse);
      }
    }
  }
}

TEST(Dedupe, NumbersKeysInOrderOfFirstOccurrence) {
  const Deduped deduped = Deduplicate({30, 10, 30, 20, 10}, 2);
  EXPECT_EQ(deduped.keys, (std::vector<int64_t>{30, 10, 20}));
  EXPECT_EQ(deduped.inverse, (std::vector<int32_t>{0, 1, 0, 2, 1}));
}

TEST(Dedupe, EveryInt64IsAKey) {
  std::vector<int64_t> ids;
  for (int64_t base : {INT64_MIN, INT64_MIN + 1, int64_t{-2}, int64_t{-1}, int64_t{0}, int64_t{1},
                       INT64_MAX - 1, INT64_MAX}) {
    ids.insert(ids.end(), {base, base, ~base});
  }
  ExpectMatchesModel(ids, Deduplicate(ids, 3));
}

TEST(Dedupe, KeysThatDifferInFewBitsStaySpread) {
  // Strides that a weak hash maps to one chain of buckets; quadratic time would take minutes.
  for (int shift = 0; shift < 47; ++shift) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 30000; ++i) ids.push_back(i << shift);
    ExpectMatchesModel(ids, Deduplicate(ids, 1));
  }
}

TEST(Dedupe, NoSpansGiveNoKeys) {
  EXPECT_TRUE(Dedupe({}).empty());
  EXPECT_TRUE(Dedupe({{nullptr, 0, nullptr}, {nullptr, 0, nullptr}}).empty());
}

}  // namespace
}  // namespace tsps
