#include "core/gradients/sort_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

namespace tsps {
namespace {

void ExpectSorted(const std::vector<int64_t>& keys) {
  std::vector<uint32_t> expected(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) expected[i] = static_cast<uint32_t>(i);
  std::stable_sort(expected.begin(), expected.end(),
                   [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  const std::unique_ptr<KeyPosition[]> sorted = SortKeys(keys.data(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(sorted[i].position, expected[i]) << i << " of " << keys.size();
    ASSERT_EQ(sorted[i].key, keys[expected[i]]);
  }
}

TEST(SortKeys, AgreesWithStableSortOnAnyKeys) {
  std::mt19937_64 random(1);
  const auto any = [&] { return static_cast<int64_t>(random()); };
  const std::vector<std::function<int64_t()>> kinds = {
      any,
      [&] { return any() % 1000; },  // many equal ones, of both signs
      [&] { return any() >> 20; },
      [&] { return static_cast<int64_t>(random() << 40); },                  // low digits alike
      [&] { return (any() & 0x1F) << 56 | (any() & 0xFF); },                 // middle digits alike
      [&] { return any() % 2 == 0 ? INT64_MIN : INT64_MAX - (any() & 1); },  // extremes
      [] { return int64_t{-7}; },                                            // one key
  };
  for (const auto& kind : kinds) {
    for (size_t n : {0, 1, 2, 50, 191, 192, 193, 1000, 20000}) {
      std::vector<int64_t> keys(n);
      for (int64_t& key : keys) key = kind();
      ExpectSorted(keys);
      std::sort(keys.begin(), keys.end());
      ExpectSorted(keys);
      std::reverse(keys.begin(), keys.end());
      ExpectSorted(keys);
    }
  }
}

}  // namespace
}  // namespace tsps
