#include "core/cache/staging_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tsps {
namespace {

using Ids = std::vector<int64_t>;
using Positions = std::vector<int32_t>;

class StagingQueueTest : public ::testing::Test {
 protected:
  explicit StagingQueueTest(uint32_t slots = 4) : directory_(Of(slots)), queue_(&directory_) {}

  static SlotDirectory::Options Of(uint32_t slots) {
    SlotDirectory::Options options;
    options.slots = slots;
    options.policy = SlotDirectory::Policy::kLru;
    return options;
  }

  void Add(int64_t index, const std::vector<Ids>& lookups) {
    std::vector<StagedLookup> all;
    for (const Ids& ids : lookups) all.emplace_back(ids);
    queue_.Add(index, std::move(all));
  }
  StagingQueue::Taken Take(const Ids& ids) { return queue_.Take(ids.data(), ids.size()); }
  bool WouldWait(const Ids& ids) const { return queue_.WouldWait(ids.data(), ids.size()); }
  void Copied(int64_t copy) {
    // Next() blocks when there is nothing more to do, so something is announced for it.
    Add(kNothing, {{kOther + copy}});
    const StagingQueue::Work work = queue_.Next(copy);
    removed_.insert(removed_.end(), work.removed.begin(), work.removed.end());
    if (work.copy != 0) queue_.Fail(work.copy);
  }
  // A step of unique keys.
  void Step(const Ids& keys) {
    const auto plan = directory_.MakePlan(keys.data(), keys.size());
    ASSERT_TRUE(plan.ok());
    ASSERT_TRUE(queue_.Commit(++step_, [&] { return directory_.Commit(*plan, keys.data()); }).ok());
  }

  static constexpr int64_t kNothing = 77, kOther = 1'000'000;
  SlotDirectory directory_;
  StagingQueue queue_;
  std::vector<int64_t> removed_;
  uint64_t step_ = 0;
};

TEST_F(StagingQueueTest, WhatWasAnnouncedIsTaken) {
  Add(0, {{7, 5, 7, 9}});
  const StagingQueue::Work work = queue_.Next(0);
  EXPECT_EQ(work.copy, 1);
  EXPECT_EQ(work.lookup->copied, (std::vector<uint32_t>{0, 1, 2})) << "no key has a slot";
  Copied(work.copy);

  EXPECT_EQ(Take({5, 7, 7, 9}).lookup, nullptr) << "other ids";
  const StagingQueue::Taken taken = Take({7, 5, 7, 9});
  ASSERT_NE(taken.lookup, nullptr);
  EXPECT_EQ(taken.lookup->keys, (Ids{7, 5, 9}));
  EXPECT_EQ(taken.lookup->inverse, (Positions{0, 1, 0, 2}));
  EXPECT_EQ(taken.copy, 1);
  EXPECT_EQ(taken.positions, (Positions{0, 1, 2}));
  EXPECT_EQ(Take({7, 5, 7, 9}).lookup, nullptr) << "it was taken";
  EXPECT_EQ(queue_.counters().rows_used, 3u);
}

TEST_F(StagingQueueTest, RowsThatWereWrittenSinceDoNotCount) {
  Step({1, 2, 3, 4});
  Add(0, {{1, 5, 6}});
  const StagingQueue::Work work = queue_.Next(0);
  EXPECT_EQ(work.lookup->copied, (std::vector<uint32_t>{1, 2})) << "1 has a slot";
  EXPECT_EQ(work.step, 1u);
  Step({5, 2, 3, 4});  // 5 enters for 1
  Step({7, 2, 3, 4});  // and leaves: it was written
  Copied(work.copy);
  const StagingQueue::Taken taken = Take({1, 5, 6});
  EXPECT_EQ(taken.positions, (Positions{-1, -1, 1})) << "1 was not read, 5 was written";
  EXPECT_EQ(taken.slots, (Positions(3, SlotDirectory::kNoSlot)));
}

TEST_F(StagingQueueTest, RowsThatHaveSlotsAreNotTaken) {
  Add(0, {{1, 2}});
  const int64_t copy = queue_.Next(0).copy;
  Copied(copy);
  Step({2});
  const StagingQueue::Taken taken = Take({1, 2});
  EXPECT_EQ(taken.positions, (Positions{0, -1}));
  EXPECT_EQ(taken.slots[0], SlotDirectory::kNoSlot);
  EXPECT_NE(taken.slots[1], SlotDirectory::kNoSlot);
}

TEST_F(StagingQueueTest, NothingCountsAfterTheTableWasWrittenByOthers) {
  Add(0, {{1, 2}});
  Copied(queue_.Next(0).copy);
  queue_.Clear();
  const StagingQueue::Taken taken = Take({1, 2});
  EXPECT_EQ(taken.positions, (Positions{-1, -1}));
  EXPECT_EQ(taken.copy, 1) << "it is taken from the device all the same";
}

TEST_F(StagingQueueTest, ALookUpThatComesBeforeItsCopyIsBegunDoesNotWait) {
  Add(0, {{1, 2}});
  const Ids ids = {1, 2};
  EXPECT_FALSE(queue_.WouldWait(ids.data(), 2));
  const StagingQueue::Taken taken = Take(ids);
  ASSERT_NE(taken.lookup, nullptr) << "it need not be deduped again";
  EXPECT_EQ(taken.copy, 0);
  EXPECT_EQ(taken.positions, (Positions{-1, -1}));
}

TEST_F(StagingQueueTest, ALookUpWaitsForItsCopy) {
  Add(0, {{1, 2}});
  const StagingQueue::Work work = queue_.Next(0);
  const Ids ids = {1, 2};
  EXPECT_TRUE(queue_.WouldWait(ids.data(), 2));
  std::thread copier([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Copied(work.copy);
  });
  EXPECT_EQ(Take(ids).positions, (Positions{0, 1}));
  copier.join();
  EXPECT_GT(queue_.counters().waited_ns, 5'000'000u);
}

TEST_F(StagingQueueTest, ALookUpDoesNotWaitForACopierThatFailedOrEnded) {
  Add(0, {{1, 2}, {3}});
  const StagingQueue::Work first = queue_.Next(0);
  queue_.Fail(first.copy);
  EXPECT_EQ(Take({1, 2}).copy, 0);
  ASSERT_NE(queue_.Next(0).copy, 0);
  std::thread closer([&] { queue_.Close(); });
  EXPECT_EQ(Take({3}).copy, 0);
  closer.join();
  EXPECT_TRUE(queue_.Next(0).closed);
}

TEST_F(StagingQueueTest, ALookUpDoesNotWaitForACopierThatHadEndedBefore) {
  Add(0, {{1, 2}});
  ASSERT_NE(queue_.Next(0).copy, 0);
  EXPECT_TRUE(WouldWait({1, 2}));
  queue_.Close();
  EXPECT_FALSE(WouldWait({1, 2}));
  EXPECT_EQ(Take({1, 2}).lookup, nullptr);
}

TEST_F(StagingQueueTest, CopiesThatNobodyTakesAreRemoved) {
  Add(0, {{1}});
  Add(1, {{2}});
  Add(2, {{3}});
  const int64_t first = queue_.Next(0).copy;
  const int64_t second = queue_.Next(first).copy;  // is being copied
  ASSERT_NE(Take({3}).lookup, nullptr);
  const StagingQueue::Work work = queue_.Next(second);
  EXPECT_EQ(work.removed, (std::vector<int64_t>{first, second}));
  EXPECT_EQ(queue_.counters().dropped, 2u);
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(StagingQueueTest, ANewIteratorDropsWhatTheOneBeforeItAnnounced) {
  Add(0, {{1}});
  Add(1, {{2}});
  Add(0, {{3}});
  EXPECT_EQ(Take({1}).lookup, nullptr);
  EXPECT_EQ(Take({2}).lookup, nullptr);
  EXPECT_NE(Take({3}).lookup, nullptr);
}

TEST_F(StagingQueueTest, TheNumberOfBatchesIsBounded) {
  for (int64_t i = 0; i < 40; ++i) Add(i, {{i}, {100 + i}});
  EXPECT_EQ(queue_.size(), StagingQueue::kMost);
  EXPECT_EQ(Take({24}).lookup, nullptr);
  EXPECT_NE(Take({25}).lookup, nullptr);
  EXPECT_NE(Take({125}).lookup, nullptr);
  for (int64_t i = 40; i < 60; ++i) Add(i, {{i}, {100 + i}});
  EXPECT_LE(queue_.size(), StagingQueue::kMost);
  EXPECT_NE(Take({59}).lookup, nullptr);
}

TEST_F(StagingQueueTest, SeveralLookUpsOfABatchAreEachTaken) {
  Add(0, {{1, 2}, {2, 3}, {1, 2}});
  for (int64_t copy = queue_.Next(0).copy; copy != 3;) copy = queue_.Next(copy).copy;
  Copied(3);
  EXPECT_EQ(Take({2, 3}).positions, (Positions{0, 1})) << "in any order";
  const StagingQueue::Taken first = Take({1, 2}), second = Take({1, 2});
  EXPECT_EQ(first.positions, (Positions{0, 1}));
  EXPECT_EQ(second.positions, (Positions{0, 1}));
  EXPECT_NE(first.copy, second.copy);
}

TEST_F(StagingQueueTest, AStepBetweenLookUpsOfABatchMakesRowsOfTheSecondOld) {
  Add(0, {{1, 2}, {2, 3}});
  const int64_t first = queue_.Next(0).copy;
  const int64_t second = queue_.Next(first).copy;
  Copied(second);
  EXPECT_EQ(Take({1, 2}).positions, (Positions{0, 1}));
  Step({9});
  EXPECT_EQ(Take({2, 3}).positions, (Positions{-1, -1}));
}

TEST_F(StagingQueueTest, WhatIsAnnouncedAndNotLookedUpIsSaidOnce) {
  int said = 0;
  for (int64_t i = 0; i < 100; ++i) {
    Add(i, {{i}});
    const StagingQueue::Work work = queue_.Next(0);
    said += work.astray;
    if (work.copy != 0) queue_.Fail(work.copy);
  }
  EXPECT_EQ(said, 1);
}

TEST_F(StagingQueueTest, StepsOfWhichNoneWasAnnouncedAreSaidOnce) {
  Add(0, {{1}});
  queue_.Fail(queue_.Next(0).copy);
  Take({1});
  for (int64_t i = 0; i < 200; ++i) Step({i});
  EXPECT_TRUE(queue_.Next(0).astray);
}

// --- Threads: a dataset, a copier and training, with delays. What is taken is what the host has.

struct Order {
  bool copier_waits_for_step = true;  // the rows that it reads are of the step that it was told
  bool counts_are_obeyed = true;      // rows that were written since are read again
};

// Returns how many rows were wrong. Adds to `used` how many were taken.
int Train(const Order& order, unsigned seed, uint64_t* used) {
  constexpr int kSteps = 60, kAhead = 3, kPerBatch = 12, kHot = 40;
  std::mt19937 random(seed);
  std::vector<Ids> batches;
  for (int m = 0; m < kSteps; ++m) {
    Ids ids;
    for (int i = 0; i < kPerBatch; ++i) ids.push_back(random() % kHot);
    batches.push_back(ids);
  }
  SlotDirectory::Options options;
  options.slots = 6;
  options.policy = SlotDirectory::Policy::kAdmission;
  SlotDirectory directory(options);
  StagingQueue queue(&directory);
  std::vector<std::atomic<int>> host(kHot);  // versions
  std::atomic<uint64_t> published{0};
  std::atomic<int> taken{-1};
  std::mutex device_mutex;
  std::vector<std::vector<int>> copies(10'000);
  const auto nap = [](std::mt19937& of) {
    std::this_thread::sleep_for(std::chrono::microseconds(of() % 60));
  };

  std::thread dataset([&, own = std::mt19937(seed + 1)]() mutable {
    for (int m = 0; m < kSteps; ++m) {
      while (taken < m - 1 - kAhead) std::this_thread::yield();
      nap(own);
      std::vector<StagedLookup> one;
      one.emplace_back(batches[static_cast<size_t>(m)]);
      queue.Add(m, std::move(one));
    }
  });
  std::thread copier([&, own = std::mt19937(seed + 2)]() mutable {
    int64_t copied = 0;
    for (;;) {
      const StagingQueue::Work work = queue.Next(copied);
      if (work.closed) return;
      copied = work.copy;
      if (copied == 0) continue;
      if (own() % 2) nap(own);
      while (order.copier_waits_for_step && published < work.step) std::this_thread::yield();
      std::vector<int> rows;
      for (const uint32_t i : work.lookup->copied) {
        rows.push_back(host[static_cast<size_t>(work.lookup->keys[i])]);
      }
      const std::lock_guard<std::mutex> lock(device_mutex);
      copies[static_cast<size_t>(copied)] = rows;
    }
  });

  int wrong = 0;
  std::vector<int> device(options.slots);
  for (int m = 0; m < kSteps; ++m) {
    const Ids& ids = batches[static_cast<size_t>(m)];
    const StagingQueue::Taken found = queue.Take(ids.data(), ids.size());
    taken = m;
    StagedLookup own(ids);
    if (found.lookup != nullptr) {
      for (size_t i = 0; i < own.keys.size(); ++i) {
        int32_t at = found.positions[i];
        if (!order.counts_are_obeyed && found.copy != 0 &&
            found.slots[i] == SlotDirectory::kNoSlot) {
          const auto& copied = found.lookup->copied;
          const auto place = std::find(copied.begin(), copied.end(), i);
          at = place == copied.end() ? -1 : static_cast<int32_t>(place - copied.begin());
        }
        if (at < 0) continue;
        const std::lock_guard<std::mutex> lock(device_mutex);
        wrong += copies[static_cast<size_t>(found.copy)][static_cast<size_t>(at)] !=
                 host[static_cast<size_t>(own.keys[i])];
      }
    }
    nap(random);
    const auto plan = directory.MakePlan(own.keys.data(), own.keys.size());
    EXPECT_TRUE(plan.ok());
    std::vector<std::pair<int64_t, int>> writes;
    for (const SlotDirectory::Victim& victim : plan->victims) {
      writes.push_back({victim.key, device[victim.slot]});
    }
    for (size_t i = 0; i < own.keys.size(); ++i) {
      if (plan->slots[i] == SlotDirectory::kNoSlot) {
        writes.push_back({own.keys[i], host[static_cast<size_t>(own.keys[i])] + 1});
      }
    }
    std::vector<int> entering;
    for (const uint32_t i : plan->entering) {
      entering.push_back(host[static_cast<size_t>(own.keys[i])]);
    }
    EXPECT_TRUE(queue
                    .Commit(static_cast<uint64_t>(m) + 1,
                            [&] { return directory.Commit(*plan, own.keys.data()); })
                    .ok());
    nap(random);  // the step is decided, and not yet to be seen
    for (const auto& [key, version] : writes) host[static_cast<size_t>(key)] = version;
    published = static_cast<uint64_t>(m) + 1;
    for (size_t e = 0; e < plan->entering.size(); ++e) {
      device[static_cast<size_t>(plan->slots[plan->entering[e]])] = entering[e];
    }
    for (size_t i = 0; i < own.keys.size(); ++i) {
      if (plan->slots[i] != SlotDirectory::kNoSlot) ++device[static_cast<size_t>(plan->slots[i])];
    }
  }
  queue.Close();
  dataset.join();
  copier.join();
  *used += queue.counters().rows_used;
  return wrong;
}

TEST(StagingThreadsTest, RowsThatAreTakenAreThoseOfTheHost) {
  uint64_t used = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    EXPECT_EQ(Train({}, seed, &used), 0) << "seed " << seed;
  }
  EXPECT_GT(used, 0u);
}

class StagingControlTest : public ::testing::TestWithParam<bool Order::*> {};

TEST_P(StagingControlTest, IsFound) {
  Order order;
  order.*GetParam() = false;
  int wrong = 0;
  uint64_t used = 0;
  for (unsigned seed = 0; seed < 400 && wrong == 0; ++seed) wrong = Train(order, seed, &used);
  EXPECT_GT(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Each, StagingControlTest,
                         ::testing::Values(&Order::copier_waits_for_step,
                                           &Order::counts_are_obeyed));

}  // namespace
}  // namespace tsps
