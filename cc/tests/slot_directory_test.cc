// The slot directory of a device cache against what its policies say, kept with plain containers.
#include "core/cache/slot_directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace tsps {
namespace {

using Keys = std::vector<int64_t>;
using Policy = SlotDirectory::Policy;

SlotDirectory::Options WithSlots(uint32_t slots, Policy policy, double memory = 24) {
  SlotDirectory::Options options;
  options.slots = slots;
  options.policy = policy;
  options.memory = memory;
  return options;
}

// Unique keys of [0, rows), small ones more often.
Keys SkewedKeys(size_t draws, int64_t rows, std::mt19937_64* random) {
  std::uniform_real_distribution<double> unit(0, 1);
  std::set<int64_t> keys;
  for (size_t i = 0; i < draws; ++i) {
    const auto place =
        static_cast<uint64_t>(std::pow(unit(*random), 3) * static_cast<double>(rows));
    keys.insert(static_cast<int64_t>(place * 0x9E3779B97F4A7C1 + 5));
  }
  Keys shuffled(keys.begin(), keys.end());
  std::shuffle(shuffled.begin(), shuffled.end(), *random);
  return shuffled;
}

SlotDirectory::Plan Take(SlotDirectory* directory, const Keys& keys) {
  auto plan = directory->MakePlan(keys.data(), keys.size());
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  const Status committed = directory->Commit(*plan, keys.data());
  EXPECT_TRUE(committed.ok()) << committed.message();
  return *plan;
}

std::vector<int32_t> Find(const SlotDirectory& directory, const Keys& keys) {
  std::vector<int32_t> slots(keys.size());
  directory.Find(keys.data(), keys.size(), slots.data());
  return slots;
}

bool Has(const SlotDirectory& directory, int64_t key) {
  return Find(directory, {key})[0] != SlotDirectory::kNoSlot;
}

// What a directory may have said, from its plans alone.
class Model {
 public:
  explicit Model(uint32_t slots) : slots_(slots) {}

  // Checks a plan, and does what it says.
  void Follow(const Keys& keys, const SlotDirectory::Plan& plan) {
    ASSERT_EQ(plan.slots.size(), keys.size());
    const std::set<int64_t> batch(keys.begin(), keys.end());
    std::map<int64_t, int32_t> entering;
    std::set<int32_t> taken, given_up;
    for (const auto& [key, slot] : held_) taken.insert(slot);
    for (const uint32_t i : plan.entering) {
      ASSERT_LT(i, keys.size());
      ASSERT_EQ(held_.count(keys[i]), 0u) << "it has a slot";
      ASSERT_NE(plan.slots[i], SlotDirectory::kNoSlot);
      ASSERT_TRUE(entering.emplace(keys[i], plan.slots[i]).second);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (entering.count(keys[i])) continue;
      const auto found = held_.find(keys[i]);
      ASSERT_EQ(plan.slots[i], found == held_.end() ? SlotDirectory::kNoSlot : found->second);
    }
    for (const SlotDirectory::Victim& victim : plan.victims) {
      ASSERT_EQ(batch.count(victim.key), 0u) << "the take needs it";
      ASSERT_EQ(held_.count(victim.key), 1u);
      ASSERT_EQ(held_[victim.key], static_cast<int32_t>(victim.slot));
      ASSERT_EQ(victim.newer, newer_.count(victim.key) != 0);
      held_.erase(victim.key);
      newer_.erase(victim.key);
      taken.erase(static_cast<int32_t>(victim.slot));
      given_up.insert(static_cast<int32_t>(victim.slot));
    }
    for (const auto& [key, slot] : entering) {
      ASSERT_GE(slot, 0);
      ASSERT_LT(slot, static_cast<int32_t>(slots_));
      ASSERT_TRUE(taken.insert(slot).second) << "two keys in a slot";
      given_up.erase(slot);
      held_[key] = slot;
    }
    ASSERT_TRUE(given_up.empty()) << "a victim that makes room for none";
    for (const int64_t key : keys) {
      if (held_.count(key)) newer_.insert(key);
      flushing_.erase(key);
    }
    for (const auto& victim : plan.victims) flushing_.erase(victim.key);
  }
  void BeginFlush() { flushing_ = newer_; }
  void Flushed() {
    for (const int64_t key : flushing_) newer_.erase(key);
    flushing_.clear();
  }

  const std::map<int64_t, int32_t>& held() const { return held_; }
  const std::set<int64_t>& newer() const { return newer_; }
  const std::set<int64_t>& flushing() const { return flushing_; }

 private:
  uint32_t slots_;
  std::map<int64_t, int32_t> held_;
  std::set<int64_t> newer_, flushing_;
};

class SlotDirectoryTest : public ::testing::TestWithParam<Policy> {};
INSTANTIATE_TEST_SUITE_P(Policies, SlotDirectoryTest,
                         ::testing::Values(Policy::kAdmission, Policy::kLru), [](const auto& info) {
                           return info.param == Policy::kLru ? "Lru" : "Admission";
                         });

TEST_P(SlotDirectoryTest, PlansAreAboutWhatIsHeld) {
  for (const uint32_t slots : {60u, 500u, 3000u}) {
    std::mt19937_64 random(slots);
    SlotDirectory directory(WithSlots(slots, GetParam(), 4));
    Model model(slots);
    uint64_t fingerprint = 0;
    std::optional<SlotDirectory::Newer> newer;  // of a flush that has begun
    for (int take = 0; take < 400; ++take) {
      const Keys keys = SkewedKeys(50, 4000, &random);
      if (random() % 3 == 0) {
        const Keys ahead = SkewedKeys(50, 4000, &random);
        directory.Stage(++fingerprint, ahead.data(), ahead.size());
      }
      if (random() % 3 == 0) directory.Match(fingerprint - random() % 3);
      auto plan = directory.MakePlan(keys.data(), keys.size());
      ASSERT_TRUE(plan.ok());
      if (random() % 8 == 0) continue;  // the step fails
      ASSERT_TRUE(directory.Commit(*plan, keys.data()).ok());
      model.Follow(keys, *plan);
      if (HasFatalFailure()) return;
      if (newer.has_value() && random() % 3 == 0) {
        std::set<int64_t> still;
        for (const uint32_t i : directory.StillNewer(*newer)) still.insert(newer->keys[i]);
        ASSERT_EQ(still, model.flushing());
        directory.Flushed(*newer);
        model.Flushed();
        newer.reset();
      } else if (!newer.has_value() && random() % 2 == 0) {  // the clock comes round
        newer = directory.FindNewer();
        model.BeginFlush();
        ASSERT_EQ(std::set<int64_t>(newer->keys.begin(), newer->keys.end()), model.newer());
        ASSERT_EQ(newer->keys.size(), directory.newer());
        ASSERT_EQ(Find(directory, newer->keys),
                  std::vector<int32_t>(newer->slots.begin(), newer->slots.end()));
      }
      ASSERT_EQ(directory.newer(), model.newer().size());
      for (const auto& [key, slot] : model.held()) ASSERT_EQ(Find(directory, {key})[0], slot);
    }
    EXPECT_EQ(model.held().size(), slots < 3000 ? slots : model.held().size());
    EXPECT_GT(directory.counters().hits, 0u);
  }
}

// The host has the row as of the first step, the device that of the second one.
TEST_P(SlotDirectoryTest, ARowThatIsTrainedDuringAFlushStaysNewer) {
  SlotDirectory directory(WithSlots(1, GetParam()));
  Take(&directory, {1});
  const SlotDirectory::Newer newer = directory.FindNewer();
  Take(&directory, {1});
  EXPECT_TRUE(directory.StillNewer(newer).empty());
  directory.Flushed(newer);
  EXPECT_EQ(directory.newer(), 1u);
  while (true) {
    const SlotDirectory::Plan plan = Take(&directory, {2});
    if (plan.victims.empty()) continue;  // it was not used often enough yet
    EXPECT_TRUE(plan.victims[0].newer);
    break;
  }
}

TEST_P(SlotDirectoryTest, AFlushLeavesRowsAloneThatHaveLeftTheirSlots) {
  SlotDirectory directory(WithSlots(1, GetParam()));
  Take(&directory, {1});
  const SlotDirectory::Newer newer = directory.FindNewer();
  while (!Has(directory, 2)) Take(&directory, {2});
  while (!Has(directory, 1)) Take(&directory, {1});
  EXPECT_TRUE(directory.StillNewer(newer).empty()) << "the key has the slot again";
  directory.Flushed(newer);
  EXPECT_EQ(directory.newer(), 1u);
}

TEST_P(SlotDirectoryTest, OfTwoFlushesTheFirstOneDoesNotEndTheSecond) {
  SlotDirectory directory(WithSlots(2, GetParam()));
  Take(&directory, {1, 2});
  const SlotDirectory::Newer first = directory.FindNewer();
  Take(&directory, {1});
  const SlotDirectory::Newer second = directory.FindNewer();
  EXPECT_EQ(directory.StillNewer(first).size(), 1u);
  EXPECT_EQ(directory.StillNewer(second).size(), 2u);
  directory.Flushed(first);
  EXPECT_EQ(directory.newer(), 1u) << "the row that was trained between them";
  EXPECT_EQ(directory.StillNewer(second).size(), 1u);
  directory.Flushed(second);
  EXPECT_EQ(directory.newer(), 0u);
}

TEST_P(SlotDirectoryTest, AStepThatFailsChangesNothing) {
  SlotDirectory directory(WithSlots(4, GetParam()));
  Take(&directory, {1, 2, 3, 4});
  for (int i = 0; i < 5; ++i) {
    const Keys others = {5, 6};
    auto plan = directory.MakePlan(others.data(), 2);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(Find(directory, {1, 2, 3, 4, 5, 6}),
              (std::vector<int32_t>{0, 1, 2, 3, SlotDirectory::kNoSlot, SlotDirectory::kNoSlot}));
    if (i == 0) {
      auto next = directory.MakePlan(others.data(), 2);
      ASSERT_TRUE(next.ok());
      EXPECT_FALSE(directory.Commit(*plan, others.data()).ok()) << "another was made since";
      ASSERT_TRUE(directory.Commit(*next, others.data()).ok());
      EXPECT_FALSE(directory.Commit(*next, others.data()).ok()) << "it is committed";
      directory.Clear();
      Take(&directory, {1, 2, 3, 4});
    }
  }
  const SlotDirectory::Plan plan = Take(&directory, {5, 6});
  EXPECT_EQ(plan.victims.size(), 2u) << "they were wanted often enough";
}

TEST_P(SlotDirectoryTest, AfterClearAllSlotsAreFree) {
  SlotDirectory directory(WithSlots(100, GetParam()));
  std::mt19937_64 random(2);
  for (int round = 0; round < 3; ++round) {
    Model model(100);
    for (int take = 0; take < 50; ++take) {
      const Keys keys = SkewedKeys(40, 1000, &random);
      model.Follow(keys, Take(&directory, keys));
      if (HasFatalFailure()) return;
    }
    ASSERT_EQ(model.held().size(), 100u);
    directory.Clear();
    EXPECT_EQ(directory.newer(), 0u);
    for (const auto& [key, slot] : model.held()) EXPECT_FALSE(Has(directory, key)) << slot;
  }
}

TEST_P(SlotDirectoryTest, TakesNoMoreThanFortyBytesPerSlot) {
  constexpr uint32_t kSlots = 300000;
  SlotDirectory directory(WithSlots(kSlots, GetParam(), 2));
  std::mt19937_64 random(4);
  size_t most = 0;
  for (int take = 0; take < 60; ++take) {
    Keys keys;
    for (int i = 0; i < 60000; ++i) keys.push_back(static_cast<int64_t>(random() % 700000));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    Take(&directory, keys);
    most = std::max(most, directory.bytes());
  }
  EXPECT_GT(directory.counters().evicted, 1000u);
  EXPECT_LE(most, size_t{40} * kSlots);
}

TEST(SlotDirectoryLru, ThoseThatWereNotUsedForTheLongestTimeLeave) {
  std::mt19937_64 random(8);
  SlotDirectory directory(WithSlots(200, Policy::kLru));
  Model model(200);
  std::map<int64_t, int> last;  // of held keys, the take that used them last
  size_t victims = 0;
  for (int take = 0; take < 500; ++take) {
    const Keys keys = SkewedKeys(60, 2000, &random);
    const SlotDirectory::Plan plan = Take(&directory, keys);
    model.Follow(keys, plan);
    if (HasFatalFailure()) return;
    int newest = -1;
    for (const SlotDirectory::Victim& victim : plan.victims) {
      newest = std::max(newest, last.at(victim.key));
      last.erase(victim.key);
      ++victims;
    }
    const std::set<int64_t> batch(keys.begin(), keys.end());
    for (const auto& [key, when] : last) {
      ASSERT_TRUE(batch.count(key) || when >= newest) << "it was to leave first";
    }
    for (const int64_t key : keys) {
      last[key] = take;
      ASSERT_TRUE(model.held().count(key)) << "every key enters";
    }
  }
  EXPECT_GT(victims, 1000u);
}

TEST(SlotDirectoryLru, ABatchOfMoreKeysThanSlotsIsRefused) {
  SlotDirectory directory(WithSlots(3, Policy::kLru));
  Take(&directory, {1, 2, 3});
  const Keys keys = {4, 5, 6, 7};
  const auto plan = directory.MakePlan(keys.data(), keys.size());
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  EXPECT_NE(plan.status().message().find("the batch has 4 unique keys, the cache 3 rows"),
            std::string::npos)
      << plan.status().message();
  EXPECT_EQ(Take(&directory, {4, 5, 6}).victims.size(), 3u);
}

// Counts as the policy defines them, of all keys, for ever, in double.
class ExactCounts {
 public:
  ExactCounts(uint32_t slots, double memory) : uses_(slots * memory) {}
  void Take(const Keys& keys) {
    weight_ *= std::exp(static_cast<double>(keys.size()) / uses_);
    for (const int64_t key : keys) counts_[key] += weight_;
  }
  double Of(int64_t key) const { return counts_.at(key) / weight_; }

 private:
  double uses_, weight_ = 1;
  std::map<int64_t, double> counts_;
};

// Of counts: a sixteenth of an octave by the queue, a part of 256 per use by the sketch.
constexpr double kTolerance = 1.1;

TEST(SlotDirectoryAdmission, WhoEntersIsMoreFrequentThanWhoLeaves) {
  for (const double memory : {0.5, 8.0}) {  // with the first, weights are made small again
    constexpr uint32_t kSlots = 256;
    std::mt19937_64 random(9);
    SlotDirectory directory(WithSlots(kSlots, Policy::kAdmission, memory));
    Model model(kSlots);
    ExactCounts counts(kSlots, memory);
    size_t entered = 0, stayed = 0, wrong = 0;
    for (int take = 0; take < 3000; ++take) {
      // No more keys than the sketch has entries, nearly; which are frequent changes.
      Keys keys = SkewedKeys(60, 400, &random);
      for (int64_t& key : keys) key += take / 700;
      counts.Take(keys);
      const bool was_full = model.held().size() == kSlots;
      const std::map<int64_t, int32_t> before = model.held();
      const SlotDirectory::Plan plan = Take(&directory, keys);
      model.Follow(keys, plan);
      if (HasFatalFailure()) return;
      const std::set<int64_t> batch(keys.begin(), keys.end());
      if (!was_full) continue;
      double coldest = 1e9, hottest_victim = 0;
      for (const auto& [key, slot] : model.held()) {
        if (!batch.count(key)) coldest = std::min(coldest, counts.Of(key));
      }
      for (const SlotDirectory::Victim& victim : plan.victims) {
        hottest_victim = std::max(hottest_victim, counts.Of(victim.key));
      }
      for (size_t i = 0; i < keys.size(); ++i) {
        if (before.count(keys[i])) continue;
        const double count = counts.Of(keys[i]);
        if (plan.slots[i] != SlotDirectory::kNoSlot) {
          ++entered;
          wrong += count * kTolerance <= hottest_victim + 1;
        } else {
          ++stayed;
          wrong += count > (coldest + 1) * kTolerance;
        }
      }
      wrong += hottest_victim > coldest * kTolerance;
    }
    EXPECT_GT(entered, 1000u);
    EXPECT_GT(stayed, 1000u);
    // The sketch forgets a key now and then, or takes it for another one.
    EXPECT_LE(static_cast<double>(wrong), 0.02 * static_cast<double>(entered + stayed));
  }
}

TEST(SlotDirectoryAdmission, ABatchOfMoreKeysThanSlotsTakesTheSlotsThereAre) {
  SlotDirectory directory(WithSlots(3, Policy::kAdmission));
  const SlotDirectory::Plan plan = Take(&directory, {1, 2, 3, 4, 5});
  EXPECT_EQ(plan.slots, (std::vector<int32_t>{0, 1, 2, -1, -1}));
  EXPECT_EQ(Take(&directory, {1, 2, 3, 4, 5}).slots, plan.slots) << "none is more frequent";
}

TEST(SlotDirectoryAdmission, KeysThatComeOnceDriveNoneOut) {
  SlotDirectory directory(WithSlots(1000, Policy::kAdmission));
  Keys frequent(1000);
  std::iota(frequent.begin(), frequent.end(), 0);
  Take(&directory, frequent);
  Take(&directory, frequent);
  int64_t next = 1000;
  size_t entered = 0;
  for (int take = 0; take < 50; ++take) {
    Keys keys(frequent.begin(), frequent.begin() + 500);
    for (int i = 0; i < 400; ++i) keys.push_back(next++);
    entered += Take(&directory, keys).entering.size();
  }
  EXPECT_LE(entered, 20u) << "of 20,000: the sketch took them for others";
}

TEST_P(SlotDirectoryTest, KeysOfStagedBatchesStay) {
  SlotDirectory directory(WithSlots(6, GetParam()));
  Take(&directory, {1, 2, 3, 4, 5, 6});
  for (int i = 0; i < 5; ++i) Take(&directory, {5, 6});  // 1 .. 4 are the coldest
  const Keys first = {1, 10}, second = {2, 11, 12}, third = {3, 4};
  EXPECT_EQ(directory.Stage(71, first.data(), 2), (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(directory.Stage(72, second.data(), 3), (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(directory.Stage(73, third.data(), 2), (std::vector<uint8_t>{0, 0}));
  ASSERT_TRUE(directory.Match(71).has_value());
  const SlotDirectory::Plan plan = Take(&directory, {1, 10});
  if (GetParam() == Policy::kLru) {
    ASSERT_EQ(plan.victims.size(), 1u);
    EXPECT_EQ(plan.victims[0].key, 5) << "no batch needs it";
  } else {
    EXPECT_TRUE(plan.victims.empty()) << "no batch needs 10 again, and it is new";
  }
  ASSERT_TRUE(directory.Match(72).has_value());
  Take(&directory, {2, 11, 12});
  EXPECT_TRUE(Has(directory, 3) && Has(directory, 4)) << "they are needed next";
  EXPECT_EQ(Has(directory, 5), GetParam() == Policy::kAdmission) << "it is frequent";
}

TEST(SlotDirectoryAdmission, WhatABatchNeedsEntersInPlaceOfWhatNoneNeeds) {
  SlotDirectory directory(WithSlots(4, Policy::kAdmission));
  for (int i = 0; i < 9; ++i) Take(&directory, {1, 2, 3, 4});
  const Keys next = {7, 3}, later = {8, 4};
  directory.Stage(1, next.data(), 2);
  directory.Stage(2, later.data(), 2);
  const SlotDirectory::Plan plan = Take(&directory, {8, 7, 9});
  EXPECT_NE(plan.slots[0], -1);
  EXPECT_NE(plan.slots[1], -1);
  EXPECT_EQ(plan.slots[2], -1) << "it is new, and no batch needs it";
  EXPECT_FALSE(Has(directory, 1) || Has(directory, 2));
  EXPECT_TRUE(Has(directory, 3) && Has(directory, 4));
  const Keys soon = {5, 3};
  directory.DropStaged();
  directory.Stage(3, next.data(), 2);  // 7, 3
  directory.Stage(4, soon.data(), 2);
  directory.Stage(5, later.data(), 2);  // 8, 4
  EXPECT_NE(Take(&directory, {5}).slots[0], -1) << "it is needed sooner than 8 and 4";
  EXPECT_EQ(Has(directory, 8) + Has(directory, 4), 1);
}

TEST(SlotDirectoryStaging, RowsThatWereReadAheadCountUnlessTheyWereWrittenSince) {
  SlotDirectory directory(WithSlots(2, Policy::kLru));
  Take(&directory, {1, 2});
  const Keys batch = {1, 3, 4, 5};
  EXPECT_EQ(directory.Stage(1, batch.data(), 4), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(directory.Stage(2, batch.data(), 4), (std::vector<uint8_t>{0, 1, 1, 1}));
  Take(&directory, {3, 6});  // 3 enters, 1 stays or leaves
  EXPECT_EQ(*directory.Match(1), (std::vector<uint8_t>{0, 0, 1, 1})) << "3 has a slot";
  Take(&directory, {7, 8});  // 3 leaves: it is written
  const Keys again = {3, 4};
  directory.Stage(3, again.data(), 2);
  EXPECT_EQ(*directory.Match(2), (std::vector<uint8_t>{0, 0, 1, 1}));
  EXPECT_EQ(*directory.Match(3), (std::vector<uint8_t>{1, 1})) << "staged after it was written";
  EXPECT_EQ(directory.counters().staged_used, 6u);
  EXPECT_EQ(directory.counters().staged_late, 2u);
}

TEST(SlotDirectoryStaging, AKeyThatStaysOnTheHostIsWrittenThere) {
  SlotDirectory directory(WithSlots(2, Policy::kAdmission));
  for (int i = 0; i < 5; ++i) Take(&directory, {1, 2});
  const Keys batch = {3, 4};
  directory.Stage(1, batch.data(), 2);
  directory.Stage(2, batch.data(), 2);
  EXPECT_EQ(*directory.Match(1), (std::vector<uint8_t>{1, 1}));
  const Keys keys = {1, 2, 3};  // all slots are of the take
  auto plan = directory.MakePlan(keys.data(), 3);
  directory.Stage(3, batch.data(), 2);  // before the host has the update
  ASSERT_TRUE(directory.Commit(*plan, keys.data()).ok());
  EXPECT_EQ(*directory.Match(2), (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(*directory.Match(3), (std::vector<uint8_t>{0, 1}));
  directory.Stage(4, batch.data(), 2);
  directory.Clear();
  EXPECT_EQ(*directory.Match(4), (std::vector<uint8_t>{0, 0})) << "others wrote the host's rows";
}

TEST(SlotDirectoryStaging, BatchesThatAreNotTakenAreDropped) {
  SlotDirectory directory(WithSlots(10, Policy::kAdmission));
  const Keys keys = {1, 2};
  for (uint64_t i = 0; i < 40; ++i) directory.Stage(i, keys.data(), 2);
  EXPECT_EQ(directory.counters().dropped, 40 - StagedBatches::kMost);
  EXPECT_FALSE(directory.Match(3).has_value()) << "it was dropped";
  EXPECT_TRUE(directory.Match(30).has_value());
  EXPECT_FALSE(directory.Match(30).has_value());
  EXPECT_FALSE(directory.Match(29).has_value()) << "it came before";
  EXPECT_EQ(directory.counters().dropped, 30u);
  directory.DropStaged();
  EXPECT_EQ(directory.counters().dropped, 39u);
  EXPECT_EQ(directory.counters().matched, 1u);
  directory.Stage(50, keys.data(), 2);
  EXPECT_TRUE(directory.Match(50).has_value());
}

}  // namespace
}  // namespace tsps
