// What a rank knows ahead of a sharded table: which batch comes next, whose rows are there, and
// which rows an owner may send before they are needed.
#include "core/exchange/rows_ahead.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/base/key_owner.h"

namespace tsps {
namespace {

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

void LookUp(RowsAhead& ahead, const std::vector<int64_t>& keys, bool known = true) {
  ahead.LookUp(keys.data(), keys.size(), known);
}

TEST(KeyNumbersTest, NumbersKeysInTheOrderInWhichTheyCome) {
  std::mt19937_64 random(3);
  KeyNumbers numbers;
  std::map<int64_t, uint32_t> model;
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(numbers.Has(5));
    for (int i = 0; i < 5000; ++i) {
      const auto key = static_cast<int64_t>(random() % 4000) - 2000;
      model.emplace(key, static_cast<uint32_t>(model.size()));
      ASSERT_EQ(numbers.Add(key), model.at(key));
    }
    ASSERT_EQ(numbers.size(), model.size());
    for (int64_t key = -2100; key < 2100; ++key) {
      const auto found = model.find(key);
      ASSERT_EQ(numbers.NumberOf(key), found == model.end() ? KeyNumbers::kNone : found->second);
    }
    numbers.Clear();
    model.clear();
  }
}

TEST(RowsAheadTest, TheNextBatchIsTheOneBehindTheLookUp) {
  RowsAhead ahead;
  EXPECT_FALSE(ahead.Announced());
  EXPECT_TRUE(ahead.Next().empty());
  for (int64_t b = 0; b < 4; ++b) ahead.Announce(7, b, 4, Range(100 * b, 100 * b + 150));
  EXPECT_TRUE(ahead.Announced());
  LookUp(ahead, Range(0, 150));
  EXPECT_EQ(ahead.Next(), Range(150, 250)) << "without what this one looks up, too";
  EXPECT_TRUE(ahead.Next().empty()) << "it has come to that batch";
  ahead.StepMade();
  LookUp(ahead, Range(300, 450));  // of batch 3: two were left out
  EXPECT_TRUE(ahead.Next().empty()) << "none is behind it";
  EXPECT_EQ(ahead.counters().dropped, 2u);
  EXPECT_FALSE(ahead.Announced());
}

TEST(RowsAheadTest, AnotherIteratorDropsWhatTheOneBeforeHasAnnounced) {
  RowsAhead ahead;
  for (int64_t b = 0; b < 4; ++b) ahead.Announce(7, b, 4, Range(100 * b, 100 * b + 100));
  ahead.Announce(8, 0, 4, Range(5000, 5100));  // another dataset, beside it
  ahead.Announce(7, 0, 4, Range(0, 100));
  EXPECT_EQ(ahead.counters().dropped, 4u);
  ahead.Announce(7, 1, 4, Range(100, 200));
  LookUp(ahead, Range(0, 100));
  EXPECT_EQ(ahead.Next(), Range(100, 200));
  for (int64_t b = 1; b < 9; ++b) ahead.Announce(8, b, 1, Range(100 * b, 100 * b + 100));
  EXPECT_EQ(ahead.counters().dropped, 9u) << "a dataset that nothing trains keeps four";
}

std::vector<int64_t> Sorted(std::vector<int64_t> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(RowsAheadTest, OwnersAreToldOfEveryBatchOnceAPassAtATime) {
  RowsAhead ahead;
  EXPECT_TRUE(ahead.NextPass().empty());
  EXPECT_EQ(ahead.pass(), 1u);
  const auto announce = [&](int64_t b) { ahead.Announce(7, b, 3, Range(100 * b, 100 * b + 150)); };
  announce(0);
  announce(1);
  EXPECT_EQ(ahead.pass(), 3u);
  EXPECT_EQ(Sorted(ahead.NextPass()), Range(0, 250)) << "the first batches do not wait for more";
  announce(2);
  announce(3);
  EXPECT_TRUE(ahead.NextPass().empty()) << "less than a pass is new";
  announce(4);
  LookUp(ahead, Range(0, 150));
  EXPECT_EQ(ahead.Next(), Range(150, 250));
  EXPECT_EQ(Sorted(ahead.NextPass()), Range(200, 550));
  EXPECT_TRUE(ahead.NextPass().empty());
  // Batches 1 to 4 are left, and known. Another iterator begins anew.
  ahead.Announce(7, 0, 3, Range(0, 50));
  EXPECT_EQ(Sorted(ahead.NextPass()), Range(0, 50));
  // Batches that are dropped since there are too many count no more.
  for (int64_t b = 1; b < 12; ++b) announce(b);
  EXPECT_EQ(Sorted(ahead.NextPass()), Range(400, 750));
}

TEST(RowsAheadTest, WhatIsLookedUpWithoutBeingAnnouncedHasNoNextBatch) {
  RowsAhead ahead;
  for (int64_t b = 0; b < 3; ++b) ahead.Announce(7, b, 4, Range(100 * b, 100 * b + 100));
  LookUp(ahead, Range(0, 99));  // one is missing, which is among those that are compared
  ahead.Announce(9, 0, 4, {99});
  EXPECT_EQ(ahead.Next(), (std::vector<int64_t>{}));
  ahead.StepMade();
  LookUp(ahead, Range(0, 100), /*known=*/false);
  EXPECT_FALSE(ahead.known());
  EXPECT_TRUE(ahead.Next().empty()) << "not all ranks know what was looked up";
}

TEST(RowsAheadTest, RowsAreThereForOneStep) {
  RowsAhead ahead;
  const std::vector<int64_t> keys = {4, 9, 6};
  const auto rows_of = [&](uint64_t version) {
    return ahead.Take(keys.data(), 3, 2, version).rows;
  };
  ahead.Keep(keys, {1, 0, 1}, {4, 4.5, 9, 9.5, 6, 6.5}, 2, 3);
  EXPECT_TRUE(rows_of(3).empty()) << "the step is not made yet";
  ahead.StepMade();
  EXPECT_EQ(rows_of(3), (std::vector<float>{4, 4.5, 6, 6.5}));
  EXPECT_EQ(ahead.Take(keys.data(), 3, 2, 3).have, (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_TRUE(rows_of(4).empty()) << "the table was written meanwhile";
  EXPECT_TRUE(ahead.Take(keys.data(), 3, 3, 3).rows.empty()) << "of another width";
  ahead.StepMade();
  EXPECT_TRUE(rows_of(3).empty()) << "another step was made";
  EXPECT_EQ(ahead.counters().ahead, 4u);
  EXPECT_EQ(ahead.counters().fetched, 2u);
}

TEST(RowsAheadTest, AnOwnerSendsNoRowThatTheStepMayChange) {
  RowsAhead ahead;
  LookUp(ahead, {});
  ahead.LookUpHere({1, 2});
  ahead.LookUpHere({5});
  EXPECT_EQ(ahead.Stays({1, 2, 3, 4, 5}), (std::vector<uint8_t>{0, 0, 1, 1, 0}));
  ahead.Sent({3, 4});
  ahead.StepMade();
  // Who has a row does not ask for it when it looks it up.
  EXPECT_EQ(ahead.Stays({1, 2, 3, 4, 5}), (std::vector<uint8_t>{1, 1, 0, 0, 1}));
  ahead.StepMade();
  EXPECT_EQ(ahead.Stays({3, 4}), (std::vector<uint8_t>{1, 1}));
  LookUp(ahead, {}, /*known=*/false);
  EXPECT_EQ(ahead.Stays({3, 4}), (std::vector<uint8_t>{0, 0})) << "nothing is certain";
}

TEST(RowsAheadTest, AGradientOfWhatWasNotLookedUpIsNamed) {
  RowsAhead ahead;
  LookUp(ahead, {1, 2, 3});
  const std::vector<int64_t> keys = {3, 1}, older = {1, 8};
  int64_t missing = 0;
  EXPECT_TRUE(ahead.LookedUp(keys.data(), 2, &missing));
  EXPECT_FALSE(ahead.LookedUp(older.data(), 2, &missing));
  EXPECT_EQ(missing, 8);
  ahead.StepMade();
  EXPECT_FALSE(ahead.LookedUp(keys.data(), 2, &missing));
}

// Three nodes of a rank each, and every row's last writer as its value: rows that are used must be
// those of the table, whatever is announced, left out, repeated or refused.
class Nodes {
 public:
  static constexpr int kKeys = 60;
  static constexpr size_t kNodes = 3;

  // Returns how many rows were used that had come ahead. `looking`: rows of the next batch are
  // fetched.
  int Step(const std::vector<std::vector<int64_t>>& batches, bool looking, bool made) {
    int used = 0;
    for (size_t rank = 0; rank < kNodes; ++rank) used += Forward(rank, batches[rank]);
    for (size_t rank = 0; looking && rank < kNodes; ++rank) Ahead(rank);
    if (!made) return used;
    for (const auto& batch : batches) {
      for (const int64_t key : batch) values_[static_cast<size_t>(key)] = ++writes_;
    }
    for (RowsAhead& one : ahead_) one.StepMade();
    return used;
  }
  RowsAhead& ahead(size_t rank) { return ahead_[rank]; }
  // Rows that were used and were not the table's.
  int stale() const { return stale_; }

 private:
  int Forward(size_t rank, const std::vector<int64_t>& keys) {
    LookUp(ahead_[rank], keys);
    const RowsAhead::Taken taken = ahead_[rank].Take(keys.data(), keys.size(), 1, 0);
    size_t next = 0;
    std::vector<int64_t> asked[kNodes];
    for (size_t i = 0; i < keys.size(); ++i) {
      if (taken.have[i] != 0) {
        stale_ += taken.rows[next++] != values_[static_cast<size_t>(keys[i])];
      } else {
        asked[OwnerOf(keys[i], kNodes)].push_back(keys[i]);
      }
    }
    for (size_t owner = 0; owner < kNodes; ++owner) ahead_[owner].LookUpHere(asked[owner]);
    return static_cast<int>(next);
  }
  void Ahead(size_t rank) {
    std::vector<int64_t> keys;
    std::vector<uint8_t> stays;
    std::vector<float> rows;
    std::vector<int64_t> sent[kNodes];
    for (const int64_t key : ahead_[rank].Next()) {
      const uint32_t owner = OwnerOf(key, kNodes);
      if (owner == rank) continue;
      keys.push_back(key);
      stays.push_back(ahead_[owner].Stays({key})[0]);
      rows.push_back(values_[static_cast<size_t>(key)]);
      if (stays.back() != 0) sent[owner].push_back(key);
    }
    for (size_t owner = 0; owner < kNodes; ++owner) ahead_[owner].Sent(sent[owner]);
    ahead_[rank].Keep(keys, stays, rows, 1, 0);
  }

  std::vector<float> values_ = std::vector<float>(kKeys);
  float writes_ = 0;
  int stale_ = 0;
  RowsAhead ahead_[kNodes];
};

struct Uses {
  int rows = 0;   // that had come ahead
  int stale = 0;  // of them
};

Uses RandomSequences(uint64_t n) {
  Uses uses;
  for (uint64_t seed = 0; seed < n; ++seed) {
    std::mt19937_64 random(seed);
    Nodes nodes;
    const auto draw = [&] {
      std::set<int64_t> keys;
      for (int i = 0; i < 12; ++i) keys.insert(static_cast<int64_t>(random() % Nodes::kKeys));
      return std::vector<int64_t>(keys.begin(), keys.end());
    };
    std::vector<std::vector<int64_t>> batches[Nodes::kNodes];
    int64_t announced[Nodes::kNodes] = {};
    for (int b = 0; b < 30; ++b) {
      for (auto& one : batches) one.push_back(draw());
    }
    for (size_t step = 0; step < 28; ++step) {
      for (size_t rank = 0; rank < Nodes::kNodes; ++rank) {
        if (random() % 15 == 0) announced[rank] = 0;  // another iterator, which is not in step
        const int64_t until = static_cast<int64_t>(step + random() % 3);
        for (; announced[rank] <= until; ++announced[rank]) {
          if (random() % 12 == 0) continue;  // not announced
          nodes.ahead(rank).Announce(1, announced[rank], 2,
                                     batches[rank][static_cast<size_t>(announced[rank])]);
        }
      }
      const bool made = random() % 8 != 0;
      std::vector<std::vector<int64_t>> of_step;
      for (const auto& one : batches) of_step.push_back(one[step]);
      uses.rows += nodes.Step(of_step, /*looking=*/random() % 6 != 0, made);
    }
    uses.stale += nodes.stale();
  }
  return uses;
}

TEST(RowsAheadTest, RowsThatAreUsedAreTheTablesUnderRandomSequences) {
  const Uses uses = RandomSequences(1500);
  EXPECT_EQ(uses.stale, 0);
  EXPECT_GT(uses.rows, 25000) << "rows do come ahead";
}

#ifdef TFSPS_FAULT_POINTS

// Each rule of the order, switched off, is noticed by the same sequences.
TEST(RowsAheadTest, WithoutOneOfTheRulesRowsAreStale) {
  for (const char* rule : {"rows_that_stay", "rows_sent", "rows_of_one_step"}) {
    const pid_t child = fork();
    if (child == 0) {  // which reads the environment anew
      setenv("TFSPS_FAULT_OFF", rule, 1);
      _exit(RandomSequences(300).stale > 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << rule;
  }
}

#endif

}  // namespace
}  // namespace tsps
