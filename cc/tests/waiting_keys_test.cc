#include "core/cache/waiting_keys.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tsps {
namespace {

// The keys are from small ranges, so that many are neighbours, and the table grows meanwhile.
TEST(WaitingKeysTest, AreThoseOfAMap) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    WaitingKeys keys;
    std::map<int64_t, uint16_t> expected;
    for (int i = 0; i < 3000; ++i) {
      const auto key = static_cast<int64_t>(random() % (20u << (seed % 6))) - 10;
      if (random() % 3 != 0) {
        const auto bit = static_cast<uint16_t>(1u << random() % 16);
        keys.Put(key).mask |= bit;
        expected[key] |= bit;
      } else if (WaitingKeys::Entry* const waiting = keys.Find(key)) {
        keys.Remove(waiting);
        EXPECT_EQ(expected.erase(key), 1u);
      } else {
        EXPECT_EQ(expected.count(key), 0u);
      }
      ASSERT_EQ(keys.size(), expected.size());
    }
    for (const auto& [key, mask] : expected) {
      ASSERT_NE(keys.Find(key), nullptr) << key;
      EXPECT_EQ(keys.Find(key)->mask, mask);
    }
    for (const auto& entry : std::map<int64_t, uint16_t>(expected)) {
      keys.Remove(keys.Find(entry.first));
    }
    EXPECT_EQ(keys.size(), 0u);
  }
}

}  // namespace
}  // namespace tsps
