// The slot directory of a device cache, compared with models of its policies in plain containers.
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

// Unique keys in random order. Each is one of `rows` keys, some of which are drawn more often.
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

// A model of the contents of a directory, which follows its plans.
class Model {
 public:
  explicit Model(uint32_t slots) : slots_(slots) {}

  // Checks a plan against the model, and applies it.
  void Follow(const Keys& keys, const SlotDirectory::Plan& plan) {
    ASSERT_EQ(plan.slots.size(), keys.size());
    const std::set<int64_t> batch(keys.begin(), keys.end());
    std::map<int64_t, int32_t> entering;
    std::set<int32_t> taken, freed;
    for (const auto& [key, slot] : held_) taken.insert(slot);
    for (const uint32_t i : plan.entering) {
      ASSERT_LT(i, keys.size());
      ASSERT_EQ(held_.count(keys[i]), 0u) << "the entering key has a slot already";
      ASSERT_NE(plan.slots[i], SlotDirectory::kNoSlot);
      ASSERT_TRUE(entering.emplace(keys[i], plan.slots[i]).second);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (entering.count(keys[i])) continue;
      const auto entry = held_.find(keys[i]);
      ASSERT_EQ(plan.slots[i], entry == held_.end() ? SlotDirectory::kNoSlot : entry->second);
    }
    for (const SlotDirectory::Victim& victim : plan.victims) {
      ASSERT_EQ(batch.count(victim.key), 0u) << "the victim is a key of the batch";
      ASSERT_EQ(held_.count(victim.key), 1u);
      ASSERT_EQ(held_[victim.key], static_cast<int32_t>(victim.slot));
      ASSERT_EQ(victim.newer, newer_.count(victim.key) != 0);
      held_.erase(victim.key);
      newer_.erase(victim.key);
      taken.erase(static_cast<int32_t>(victim.slot));
      freed.insert(static_cast<int32_t>(victim.slot));
    }
    for (const auto& [key, slot] : entering) {
      ASSERT_GE(slot, 0);
      ASSERT_LT(slot, static_cast<int32_t>(slots_));
      ASSERT_TRUE(taken.insert(slot).second) << "two keys in a slot";
      freed.erase(slot);
      held_[key] = slot;
    }
    ASSERT_TRUE(freed.empty()) << "the slot of a victim stays free";
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
    std::optional<SlotDirectory::Newer> newer;  // of the flush in progress
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
        std::set<int64_t> still_newer;
        for (const uint32_t i : directory.StillNewer(*newer)) still_newer.insert(newer->keys[i]);
        ASSERT_EQ(still_newer, model.flushing());
        directory.Flushed(*newer);
        model.Flushed();
        newer.reset();
      } else if (!newer.has_value() && random() % 2 == 0) {  // a flush begins
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

// The host gets the row of the first step; the device has the row of the second step.
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
    if (plan.victims.empty()) continue;  // key 2 was not used often enough yet
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
  EXPECT_TRUE(directory.StillNewer(newer).empty())
      << "key 1 has left its slot and has entered again";
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
  EXPECT_EQ(directory.newer(), 1u) << "row 1 was trained between the flushes";
  EXPECT_EQ(directory.StillNewer(second).size(), 1u);
  directory.Flushed(second);
  EXPECT_EQ(directory.newer(), 0u);
}

TEST_P(SlotDirectoryTest, AStepThatFailsChangesNothing) {
  SlotDirectory directory(WithSlots(4, GetParam()));
  Take(&directory, {1, 2, 3, 4});
  for (int i = 0; i < 5; ++i) {
    const Keys new_keys = {5, 6};
    auto plan = directory.MakePlan(new_keys.data(), 2);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(Find(directory, {1, 2, 3, 4, 5, 6}),
              (std::vector<int32_t>{0, 1, 2, 3, SlotDirectory::kNoSlot, SlotDirectory::kNoSlot}));
    if (i == 0) {
      auto next = directory.MakePlan(new_keys.data(), 2);
      ASSERT_TRUE(next.ok());
      EXPECT_FALSE(directory.Commit(*plan, new_keys.data()).ok()) << "another plan was made since";
      ASSERT_TRUE(directory.Commit(*next, new_keys.data()).ok());
      EXPECT_FALSE(directory.Commit(*next, new_keys.data()).ok())
          << "the plan is committed already";
      directory.Clear();
      Take(&directory, {1, 2, 3, 4});
    }
  }
  const SlotDirectory::Plan plan = Take(&directory, {5, 6});
  EXPECT_EQ(plan.victims.size(), 2u) << "the keys were in enough plans";
}

TEST_P(SlotDirectoryTest, ChangesAdvanceWhenKeysEnterSlotsAndOtherwiseStay) {
  SlotDirectory directory(WithSlots(2, GetParam()));
  const Keys keys = {1, 2};
  const auto plan = directory.MakePlan(keys.data(), keys.size());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(directory.changes(), 0u) << "the keys enter at Commit";
  ASSERT_TRUE(directory.Commit(*plan, keys.data()).ok());
  EXPECT_EQ(directory.changes(), 1u);
  Take(&directory, {2, 1});
  directory.Stage(1, keys.data(), keys.size());
  directory.Match(1);
  directory.Flushed(directory.FindNewer());
  EXPECT_EQ(directory.changes(), 1u);
  while (!Has(directory, 3)) {
    EXPECT_EQ(directory.changes(), 1u);
    Take(&directory, {3});
  }
  EXPECT_EQ(directory.changes(), 2u);
  directory.Clear();
  EXPECT_EQ(directory.changes(), 2u);
  Take(&directory, {3});
  EXPECT_EQ(directory.changes(), 3u);
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
  std::map<int64_t, int> last;  // the last take that used each held key
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
      ASSERT_TRUE(batch.count(key) || when >= newest) << "a key that was used earlier stays";
    }
    for (const int64_t key : keys) {
      last[key] = take;
      ASSERT_TRUE(model.held().count(key)) << "a key did not enter";
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
  EXPECT_NE(plan.status().message().find("the batch has 4 unique keys, but the cache has 3 rows"),
            std::string::npos)
      << plan.status().message();
  EXPECT_EQ(Take(&directory, {4, 5, 6}).victims.size(), 3u);
}

// The use counts that the policy defines, in double precision, and without forgetting a key.
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

// The allowed error of counts: the queue rounds them to a sixteenth of an octave, and the sketch
// rounds them to 8 bits at each use.
constexpr double kTolerance = 1.1;

TEST(SlotDirectoryAdmission, WhoEntersIsMoreFrequentThanWhoLeaves) {
  for (const double memory : {0.5, 8.0}) {  // with 0.5 the weights are rescaled
    constexpr uint32_t kSlots = 256;
    std::mt19937_64 random(9);
    SlotDirectory directory(WithSlots(kSlots, Policy::kAdmission, memory));
    Model model(kSlots);
    ExactCounts counts(kSlots, memory);
    size_t entered = 0, stayed = 0, wrong = 0;
    for (int take = 0; take < 3000; ++take) {
      // Hardly more keys than the sketch has entries. Which keys are frequent changes.
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
    // The sketch sometimes forgets a key, or mistakes it for another.
    EXPECT_LE(static_cast<double>(wrong), 0.02 * static_cast<double>(entered + stayed));
  }
}

TEST(SlotDirectoryAdmission, ABatchOfMoreKeysThanSlotsTakesTheSlotsThereAre) {
  SlotDirectory directory(WithSlots(3, Policy::kAdmission));
  const SlotDirectory::Plan plan = Take(&directory, {1, 2, 3, 4, 5});
  EXPECT_EQ(plan.slots, (std::vector<int32_t>{0, 1, 2, -1, -1}));
  EXPECT_EQ(Take(&directory, {1, 2, 3, 4, 5}).slots, plan.slots)
      << "no key is more frequent than another";
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
  EXPECT_LE(entered, 20u) << "of 20,000 keys: only those that the sketch mistakes for others";
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
    EXPECT_EQ(plan.victims[0].key, 5) << "no staged batch needs key 5";
  } else {
    EXPECT_TRUE(plan.victims.empty()) << "key 10 is new, and no staged batch needs it again";
  }
  ASSERT_TRUE(directory.Match(72).has_value());
  Take(&directory, {2, 11, 12});
  EXPECT_TRUE(Has(directory, 3) && Has(directory, 4)) << "the next batch needs keys 3 and 4";
  EXPECT_EQ(Has(directory, 5), GetParam() == Policy::kAdmission) << "key 5 is frequent";
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
  EXPECT_EQ(plan.slots[2], -1) << "key 9 is new, and no staged batch needs it";
  EXPECT_FALSE(Has(directory, 1) || Has(directory, 2));
  EXPECT_TRUE(Has(directory, 3) && Has(directory, 4));
  const Keys soon = {5, 3};
  directory.DropStaged();
  directory.Stage(3, next.data(), 2);  // 7, 3
  directory.Stage(4, soon.data(), 2);
  directory.Stage(5, later.data(), 2);  // 8, 4
  EXPECT_NE(Take(&directory, {5}).slots[0], -1) << "key 5 is needed sooner than keys 8 and 4";
  EXPECT_EQ(Has(directory, 8) + Has(directory, 4), 1);
}

TEST(SlotDirectoryStaging, RowsThatWereReadAheadCountUnlessTheyWereWrittenSince) {
  SlotDirectory directory(WithSlots(2, Policy::kLru));
  Take(&directory, {1, 2});
  const Keys batch = {1, 3, 4, 5};
  EXPECT_EQ(directory.Stage(1, batch.data(), 4), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(directory.Stage(2, batch.data(), 4), (std::vector<uint8_t>{0, 1, 1, 1}));
  Take(&directory, {3, 6});  // key 3 enters, key 1 stays or leaves
  EXPECT_EQ(*directory.Match(1), (std::vector<uint8_t>{0, 0, 1, 1})) << "key 3 has a slot";
  Take(&directory, {7, 8});  // key 3 leaves: its row on the host is written
  const Keys restaged = {3, 4};
  directory.Stage(3, restaged.data(), 2);
  EXPECT_EQ(*directory.Match(2), (std::vector<uint8_t>{0, 0, 1, 1}));
  EXPECT_EQ(*directory.Match(3), (std::vector<uint8_t>{1, 1}))
      << "the batch was staged after row 3 was written";
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
  const Keys keys = {1, 2, 3};  // keys 1 and 2 have the slots, so key 3 stays on the host
  auto plan = directory.MakePlan(keys.data(), 3);
  directory.Stage(3, batch.data(), 2);  // before the host has the update
  ASSERT_TRUE(directory.Commit(*plan, keys.data()).ok());
  EXPECT_EQ(*directory.Match(2), (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(*directory.Match(3), (std::vector<uint8_t>{0, 1}));
  directory.Stage(4, batch.data(), 2);
  directory.Clear();
  EXPECT_EQ(*directory.Match(4), (std::vector<uint8_t>{0, 0}))
      << "Clear: the host's rows were written by others";
}

TEST(SlotDirectoryStaging, BatchesThatAreNotTakenAreDropped) {
  SlotDirectory directory(WithSlots(10, Policy::kAdmission));
  const Keys keys = {1, 2};
  for (uint64_t i = 0; i < 40; ++i) directory.Stage(i, keys.data(), 2);
  EXPECT_EQ(directory.counters().dropped, 40 - StagedBatches::kMost);
  EXPECT_FALSE(directory.Match(3).has_value()) << "batch 3 was dropped";
  EXPECT_TRUE(directory.Match(30).has_value());
  EXPECT_FALSE(directory.Match(30).has_value());
  EXPECT_FALSE(directory.Match(29).has_value()) << "batch 29 came before batch 30";
  EXPECT_EQ(directory.counters().dropped, 30u);
  directory.DropStaged();
  EXPECT_EQ(directory.counters().dropped, 39u);
  EXPECT_EQ(directory.counters().matched, 1u);
  directory.Stage(50, keys.data(), 2);
  EXPECT_TRUE(directory.Match(50).has_value());
}

}  // namespace
}  // namespace tsps
