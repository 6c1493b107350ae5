// Eviction beside a plain model of it: random steps, writes and erases, after each of which rows,
// slots and uses must be those of the model.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "core/group/row_gather.h"
#include "core/group/scan.h"
#include "tests/killed_at.h"
#include "tests/table_life.h"

namespace tsps {
namespace {

struct Case {
  const char* name;
  uint64_t unused_steps, max_rows;
  EvictionPolicy::Order order;
  size_t batch;
  uint64_t in_memory = 0;  // rows of a tiered table; 0: all
};

EvictionPolicy PolicyOf(const Case& c) {
  EvictionPolicy policy;
  policy.unused_steps = c.unused_steps;
  policy.max_rows = c.max_rows;
  policy.order = c.order;
  policy.half_life = 7;
  policy.keep = {0, 1, 1000003};
  return policy;
}

class EvictionTest : public TableLifeTest {
 protected:
  std::string DifferenceByOrder();
};

class EvictionModelTest : public EvictionTest, public ::testing::WithParamInterface<Case> {};

TEST_P(EvictionModelTest, EveryStateIsThatOfTheModel) {
  const EvictionPolicy policy = PolicyOf(GetParam());
  const int table = AddEvicting(policy, GetParam().in_memory);
  Model model(policy, StatsOf(table).index_seed);
  uint64_t most_on_disk = 0;
  for (uint64_t step = 1; step <= 150; ++step) {
    const std::string when = "step " + std::to_string(step);
    const float g = static_cast<float>(step % 5) - 2;
    const std::vector<int64_t> keys = KeysOf(step, GetParam().batch);
    ASSERT_TSPS_OK(Train(table, keys, g));
    model.Step(step, keys, g);
    Expect(table, model, when);
    if (HasFatalFailure()) return;
    most_on_disk = std::max(most_on_disk, StatsOf(table).rows_on_disk);
    if (step % 10 == 4) {  // rows of other origin
      const std::vector<int64_t> set = KeysOf(1000 + step, 50);
      const std::vector<float> rows(set.size() * kDim, static_cast<float>(step));
      ASSERT_TSPS_OK(
          writer_->Assign(table, set.data(), rows.data(), nullptr, set.size(), executor_));
      model.Assign(step, set, static_cast<float>(step));
    }
    if (step % 10 == 8) {
      const std::vector<int64_t> erased = KeysOf(step, 30);
      ASSERT_TRUE(writer_->Erase(table, erased.data(), erased.size()).ok());
      model.Erase(erased);
    }
    if (step == 60) {  // the writer remembers nothing that a decision needs
      Reopen();
      SetPolicy(table, policy);
    }
    if (step == 100) {
      OptimizerConfig adagrad;
      adagrad.kind = OptimizerKind::kAdagrad;
      ASSERT_TSPS_OK(writer_->BindOptimizer(table, adagrad, true));
      Expect(table, model, when + ", with other slots");
      OptimizerConfig sgd;
      sgd.kind = OptimizerKind::kSgd;
      ASSERT_TSPS_OK(writer_->BindOptimizer(table, sgd, true));
    }
  }
  ASSERT_TSPS_OK(writer_->Verify());
  EXPECT_EQ(most_on_disk > 1000, GetParam().in_memory > 0);
  EXPECT_GT(model.unused() + model.excess(), 1000u);
  if (policy.max_rows > 0) {
    EXPECT_LE(model.rows().size(), policy.max_rows);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies, EvictionModelTest,
    ::testing::Values(Case{"unused", 12, 0, EvictionPolicy::Order::kLeastRecent, 300},
                      Case{"lru", 0, 5000, EvictionPolicy::Order::kLeastRecent, 400},
                      Case{"lfu", 0, 5000, EvictionPolicy::Order::kLeastFrequent, 400},
                      Case{"both", 15, 6000, EvictionPolicy::Order::kLeastFrequent, 900},
                      Case{"tight", 0, 1300, EvictionPolicy::Order::kLeastRecent, 1200},
                      Case{"unused_tiered", 25, 0, EvictionPolicy::Order::kLeastRecent, 300, 1000},
                      Case{"lru_tiered", 0, 5000, EvictionPolicy::Order::kLeastRecent, 400, 1200},
                      Case{"lfu_tiered", 0, 5000, EvictionPolicy::Order::kLeastFrequent, 400, 1200},
                      Case{"both_tiered", 15, 6000, EvictionPolicy::Order::kLeastFrequent, 900,
                           2500}),
    [](const auto& info) { return std::string(info.param.name); });

// Inserts the same keys into two tables, in another order, and returns how they differ after some
// steps.
std::string EvictionTest::DifferenceByOrder() {
  EvictionPolicy policy;
  policy.max_rows = 3000;
  std::map<int64_t, ModelRow> results[2];
  TempDir dirs[2];
  for (int order = 0; order < 2; ++order) {
    MakeAt(dirs[order] / "g");
    const int table = AddEvicting(policy);
    std::vector<int64_t> keys(3000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i) * 77;
    if (order == 1) std::shuffle(keys.begin(), keys.end(), std::mt19937_64(3));
    const std::vector<float> rows(keys.size() * kDim, 1.0f);
    const size_t parts = order == 0 ? 1 : 30;
    for (size_t p = 0; p < parts; ++p) {
      const size_t n = keys.size() / parts;
      const Status set = writer_->Assign(table, keys.data() + p * n, rows.data() + p * n * kDim,
                                         nullptr, n, executor_);
      EXPECT_TRUE(set.ok()) << set.message();
    }
    for (uint64_t step = 1; step <= 20; ++step) {
      EXPECT_TRUE(Train(table, KeysOf(step, 200), 1.0f).ok());
    }
    results[order] = RowsOf(*group_, table);
  }
  return Difference(results[0], results[1]);
}

TEST_F(EvictionTest, TheOrderOfInsertionDoesNotMatter) { EXPECT_EQ(DifferenceByOrder(), ""); }

TEST_F(EvictionTest, ALowerBoundIsReachedStepByStep) {
  EvictionPolicy policy;
  const int table = AddEvicting(policy);
  for (uint64_t step = 1; step <= 20; ++step) {
    ASSERT_TSPS_OK(Train(table, KeysOf(step, 1000), 1.0f));
  }
  const uint64_t before = StatsOf(table).rows;
  ASSERT_GT(before, 8000u);
  policy.max_rows = 2000;
  SetPolicy(table, policy);
  ASSERT_TSPS_OK(Train(table, {5}, 1.0f));
  EXPECT_LE(StatsOf(table).rows, before - 1024);
  EXPECT_GE(StatsOf(table).rows, before - 1026) << "the work of a step is bounded";
  for (int i = 0; i < 20; ++i) ASSERT_TSPS_OK(Train(table, {5}, 1.0f));
  EXPECT_EQ(StatsOf(table).rows, 2000u);
}

TEST_F(EvictionTest, UnusedRowsLeaveWithinAboutTwoTurns) {
  EvictionPolicy policy;
  policy.unused_steps = 10;
  const int table = AddEvicting(policy);
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i) * 13;
  ASSERT_TSPS_OK(Train(table, keys, 1.0f));
  int steps = 0;
  for (; StatsOf(table).rows > 1 && steps < 200; ++steps) ASSERT_TSPS_OK(Train(table, {-1}, 1.0f));
  EXPECT_LE(steps, 10 + 2 * 20) << "20 steps look at all rows";
}

TEST_F(EvictionTest, AStepWithMoreKeysThanTheBoundChangesNothing) {
  EvictionPolicy policy;
  policy.max_rows = 500;
  policy.keep = {1, 2, 3};
  const int table = AddEvicting(policy);
  ASSERT_TSPS_OK(Train(table, {1, 2, 3}, 1.0f));
  const auto before = RowsOf(*group_, table);
  std::vector<int64_t> keys(498);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = 100 + static_cast<int64_t>(i);
  const Status status = Train(table, keys, 1.0f);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("498 keys"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("at most 500 rows"), std::string::npos) << status.message();
  EXPECT_EQ(Difference(RowsOf(*group_, table), before), "");
  keys.pop_back();
  ASSERT_TSPS_OK(Train(table, keys, 1.0f));
  EXPECT_EQ(StatsOf(table).rows, 500u);
  ASSERT_TSPS_OK(Train(table, {7, 8}, 1.0f));
  for (const int64_t kept : {1, 2, 3}) EXPECT_EQ(RowsOf(*group_, table).count(kept), 1u);
}

TEST_F(EvictionTest, ATableAboveItsBoundStillRefusesLargerSteps) {
  EvictionPolicy policy;
  policy.max_rows = 100;
  const int table = AddEvicting(policy);
  const std::vector<int64_t> set = KeysOf(1, 101);
  const std::vector<float> rows(set.size() * kDim);
  ASSERT_TSPS_OK(writer_->Assign(table, set.data(), rows.data(), nullptr, set.size(), executor_));
  EXPECT_EQ(Train(table, KeysOf(50, 120), 1.0f).code(), Code::kResourceExhausted);
  ASSERT_TSPS_OK(Train(table, KeysOf(50, 90), 1.0f));
  EXPECT_EQ(StatsOf(table).rows, 100u);
}

TEST_F(EvictionTest, AStepThatAlsoErasesRowsEvictsOthers) {
  EvictionPolicy policy;
  policy.unused_steps = 1;
  const int table = AddEvicting(policy);
  ASSERT_TSPS_OK(Train(table, KeysOf(1, 200), 1.0f));
  const std::vector<int64_t> erased = KeysOf(1, 20);
  const std::vector<float> gradient(kDim, 1.0f);
  const int64_t key = -5;
  RowChanges changes;
  changes.step = group_->step() + 1;
  TableUpdate update{table, &key, gradient.data(), 1, &kRate, 1};
  changes.updates = {update};
  changes.erases = {{table, erased.data(), erased.size()}};
  ASSERT_TSPS_OK(writer_->Prepare(changes, executor_));
  writer_->Publish();
  EXPECT_EQ(StatsOf(table).rows, 1u);
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(EvictionTest, ARowOfALaterStepCountsAsUsedNow) {
  EvictionPolicy policy;
  policy.max_rows = 20;
  const int table = AddEvicting(policy);
  std::vector<int64_t> keys(20);
  std::vector<RowUse> uses(20, RowUse{1000, 0});
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const std::vector<float> rows(keys.size() * kDim);
  ASSERT_TSPS_OK(writer_->Assign(table, keys.data(), rows.data(), nullptr, keys.size(), executor_,
                                 uses.data()));
  for (int64_t key = 100; key < 105; ++key) {
    ASSERT_TSPS_OK(Train(table, {0, 1, 2, key}, 1.0f));
  }
  const auto left = RowsOf(*group_, table);
  for (const int64_t trained : {0, 1, 2}) EXPECT_EQ(left.count(trained), 1u) << trained;
}

TEST_F(EvictionTest, ATableWithoutUsesRefusesAPolicy) {
  const int table = AddTable("plain", 4);
  const Status status = writer_->SetEviction(table, std::make_shared<EvictionPolicy>());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
}

TEST_F(EvictionTest, ABoundThatMemoryHasNoPlacesForIsRefused) {
  const int table = AddEvicting(EvictionPolicy(), 1000);
  const auto policy = std::make_shared<EvictionPolicy>();
  policy->max_rows = 12000;
  ASSERT_TSPS_OK(writer_->SetEviction(table, policy));
  policy->max_rows = 12001;
  const Status status = writer_->SetEviction(table, policy);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("allows 12001 rows"), std::string::npos) << status.message();
}

TEST_F(EvictionTest, IncrementsHaveTheEvictedKeys) {
  EvictionPolicy policy;
  policy.max_rows = 1000;
  const int table = AddEvicting(policy);
  ASSERT_TSPS_OK(Train(table, KeysOf(1, 900), 1.0f));
  const auto before = RowsOf(*group_, table);
  const auto mark = writer_->MarkChanges();
  ASSERT_TRUE(mark.ok());
  for (uint64_t step = 2; step < 10; ++step) ASSERT_TSPS_OK(Train(table, KeysOf(step, 200), 1.0f));
  const auto after = RowsOf(*group_, table);
  auto scan = Scan::Begin(*group_, {table}, Scan::Options());
  ASSERT_TRUE(scan.ok()) << scan.status().message();
  const auto changes = (*scan)->ChangedSince(table, *mark);
  ASSERT_TRUE(changes.ok());
  ASSERT_FALSE(changes->everything);
  std::map<int64_t, ModelRow> replayed = before;
  for (const int64_t key : changes->erased) replayed.erase(key);
  for (const int64_t key : changes->written) replayed[key] = after.at(key);
  EXPECT_EQ(Difference(replayed, after), "");
  EXPECT_GT(changes->erased.size(), 100u);
}

// Keys come and go far more often than the log of erased keys has space for. Increments from one
// mark to the next stay possible.
TEST_F(EvictionTest, TheLogOfErasedKeysStaysBoundedUnderDrift) {
  EvictionPolicy policy;
  policy.max_rows = 3000;
  const int table = AddEvicting(policy);
  std::map<int64_t, ModelRow> replayed;
  uint32_t mark = *writer_->MarkChanges();
  int everything = 0;
  for (int64_t step = 0; step < 120; ++step) {
    std::vector<int64_t> keys(2500);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = step * 2000 + static_cast<int64_t>(i);
    ASSERT_TSPS_OK(Train(table, keys, 1.0f));
    if (step % 3 != 2) continue;
    const auto now = RowsOf(*group_, table);
    auto scan = Scan::Begin(*group_, {table}, Scan::Options());
    const auto changes = (*scan)->ChangedSince(table, mark);
    ASSERT_TRUE(changes.ok());
    everything += changes->everything;
    for (const int64_t key : changes->erased) replayed.erase(key);
    for (const int64_t key : changes->written) replayed[key] = now.at(key);
    ASSERT_EQ(Difference(replayed, now), "") << step;
    mark = *writer_->MarkChanges();
  }
  EXPECT_EQ(everything, 0);
  EXPECT_GT(StatsOf(table).evicted_excess, 200000u);
  EXPECT_LE(std::filesystem::file_size(dir_ / "g/t/erased"),
            (1u << 16) * sizeof(ErasedKey) * 3 / 2);
}

// Scans and reads of another thread see the rows of whole steps while rows come and go.
TEST_F(EvictionTest, ReadersBesideTheWriterSeeWholeSteps) {
  constexpr uint64_t kSteps = 120;
  EvictionPolicy policy;
  policy.max_rows = 2500;
  policy.unused_steps = 9;
  const int table = AddEvicting(policy);
  Model model(policy, StatsOf(table).index_seed);
  std::vector<std::map<int64_t, ModelRow>> expected(1);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    model.Step(step, KeysOf(step, 700), 1.0f);
    expected.push_back(model.rows());
  }
  std::atomic<bool> trained{false};
  std::atomic<int> scans{0};
  std::string difference;
  std::thread reader([&] {
    auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok()) << group.status().message();
    while (!trained && difference.empty()) {
      auto scan = Scan::Begin(**group, {table}, Scan::Options());
      if (!scan.ok()) continue;
      difference = Difference(RowsOf(**scan, table), expected[(*scan)->step()]);
      ++scans;
      uint64_t step = 0;
      std::map<int64_t, ModelRow> read;
      const Status status = (*group)->Read([&](const ReadView& view) {
        step = view.step();
        read = RowsOf(view, table);
        return Status();
      });
      if (status.ok() && difference.empty()) difference = Difference(read, expected[step]);
    }
  });
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const Status status = Train(table, KeysOf(step, 700), 1.0f);
    EXPECT_TRUE(status.ok()) << status.message();
    // At least one scan begins in each sixth of the steps.
    const int before = scans;
    for (int i = 0; step % 20 == 0 && scans == before && i < 10000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  trained = true;
  reader.join();
  EXPECT_EQ(difference, "");
  EXPECT_GT(scans, 3);
}

#ifdef TFSPS_FAULT_POINTS

// A writer is killed while it drops the older half of the log. No increment misses an erased key,
// or has one that is still there.
TEST_F(EvictionTest, AKilledTrimOfTheLogLosesNothing) {
  EvictionPolicy policy;
  policy.max_rows = 3000;
  for (const char* const point : {"erased.dropped", "erased.moved", "publish.record"}) {
    for (const long n : {1L, 2L, 500L, 30000L, 32499L, 32500L}) {
      TempDir dir;
      MakeAt(dir / "g");
      const int table = AddEvicting(policy);
      const auto train = [&](int64_t first, int64_t last, std::vector<uint32_t>* marks) {
        for (int64_t step = first; step < last; ++step) {
          marks->push_back(*writer_->MarkChanges());
          std::vector<int64_t> keys(2500);
          for (size_t i = 0; i < keys.size(); ++i) keys[i] = step * 2000 + static_cast<int64_t>(i);
          if (!Train(table, keys, 1.0f).ok()) _exit(13);
        }
      };
      std::vector<uint32_t> marks;
      train(0, 33, &marks);  // 34 steps fill the log
      const uint32_t mark = marks[20];
      const auto before = RowsOf(*group_, table);
      writer_.reset();
      group_.reset();
      KilledAt(point, n, [&] {
        group_ = *Group::Open(dir / "g");
        OpenWriter();
        SetPolicy(table, policy);
        train(33, 37, &marks);
      });
      group_ = *Group::Open(dir / "g");
      OpenWriter();
      const auto now = RowsOf(*group_, table);
      auto scan = Scan::Begin(*group_, {table}, Scan::Options());
      const auto changes = (*scan)->ChangedSince(table, mark);
      ASSERT_TRUE(changes.ok());
      const std::set<int64_t> erased(changes->erased.begin(), changes->erased.end());
      const std::set<int64_t> written(changes->written.begin(), changes->written.end());
      const std::string when = std::string(point) + ":" + std::to_string(n);
      ASSERT_FALSE(changes->everything) << when;
      for (const int64_t key : erased) {
        ASSERT_TRUE(now.count(key) == 0 || written.count(key) == 1) << when << ", key " << key;
      }
      for (const auto& [key, entry] : before) {
        ASSERT_TRUE(now.count(key) == 1 || erased.count(key) == 1) << when << ", key " << key;
      }
      ASSERT_TSPS_OK(writer_->Verify());
    }
  }
}

TEST_F(EvictionTest, ATableThatEvictsInRowOrderIsFound) {
  EXPECT_TRUE(FoundWithout("evict.order", [&] { return !DifferenceByOrder().empty(); }));
}

TEST_F(EvictionTest, AnEvictionOfAKeyOfTheStepIsFound) {
  EvictionPolicy policy;
  policy.max_rows = 1300;
  const auto differs_in = [&](uint64_t in_memory) {
    const TempDir dir;
    MakeAt(dir / "g");
    const int table = AddEvicting(policy, in_memory);
    if (HasFailure()) return false;
    Model model(policy, StatsOf(table).index_seed);
    for (uint64_t step = 1; step <= 20; ++step) {
      const std::vector<int64_t> keys = KeysOf(step, in_memory > 0 ? 400 : 1200);
      if (!Train(table, keys, 1.0f).ok()) return true;
      model.Step(step, keys, 1.0f);
      if (!Difference(RowsOf(*group_, table), model.rows()).empty()) return true;
    }
    return false;
  };
  for (const uint64_t in_memory : {0, 450}) {  // with 450, hardly a row of the step is in memory
    const auto differs = [&] { return differs_in(in_memory); };
    EXPECT_FALSE(FoundWithout("", differs)) << in_memory;
    EXPECT_TRUE(FoundWithout("evict.touched", differs)) << in_memory;
  }
}

// A writer is killed in steps that evict. The group then has the state before or after the step.
class EvictionKillTest : public EvictionTest, public ::testing::WithParamInterface<const char*> {
 protected:
  // `in_memory`: the rows in memory; 0: all.
  void KillAt(const char* point, uint64_t in_memory);
  // Looks up keys, of which some have rows and the others read their initial values.
  void ExpectLookups(Group& group, int table, const std::vector<int64_t>& keys,
                     const std::map<int64_t, ModelRow>& rows);
};

void EvictionKillTest::ExpectLookups(Group& group, int table, const std::vector<int64_t>& keys,
                                     const std::map<int64_t, ModelRow>& rows) {
  const auto config = group.Config(table);
  ASSERT_TRUE(config.ok());
  RowGather gather(*config, table, keys.data(), keys.size());
  std::vector<float> found(keys.size() * kDim);
  ASSERT_TSPS_OK(group.Read([&](const ReadView& view) {
    gather.Find(view, executor_);
    gather.CopyAll(found.data(), executor_);
    return gather.status();
  }));
  for (size_t i = 0; i < keys.size(); ++i) {
    std::vector<float> expected(kDim);
    const auto row = rows.find(keys[i]);
    if (row == rows.end()) {
      InitialRow(**config, keys[i], expected.data());
    } else {
      expected = row->second.row;
    }
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), &found[i * kDim])) << keys[i];
  }
}

void EvictionKillTest::KillAt(const char* point, uint64_t in_memory) {
  constexpr uint64_t kSteps = 40;
  EvictionPolicy policy;
  policy.max_rows = 2500;
  policy.unused_steps = in_memory > 0 ? 15 : 9;
  policy.order = EvictionPolicy::Order::kLeastFrequent;
  const int table = AddEvicting(policy, in_memory);
  const uint64_t index_seed = StatsOf(table).index_seed;
  std::vector<std::map<int64_t, ModelRow>> expected(1);
  Model model(policy, index_seed);
  const size_t batch = in_memory > 0 ? 400 : 700;
  std::set<int64_t> seen_keys;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    model.Step(step, KeysOf(step, batch), 1.0f);
    expected.push_back(model.rows());
    for (const auto& [key, row] : model.rows()) seen_keys.insert(key);
  }
  const std::vector<int64_t> seen(seen_keys.begin(), seen_keys.end());
  writer_.reset();
  group_.reset();
  const auto train = [&] {
    auto group = Group::Open(dir_ / "g");
    if (!group.ok()) _exit(10);
    group_ = *group;
    auto writer = group_->OpenWriter();
    if (!writer.ok()) _exit(11);
    writer_ = std::move(*writer);
    if (!writer_->SetEviction(table, std::make_shared<EvictionPolicy>(policy)).ok()) _exit(12);
    for (uint64_t step = group_->step() + 1; step <= kSteps; ++step) {
      if (!Train(table, KeysOf(step, batch), 1.0f).ok()) _exit(13);
    }
  };
  int kills = 0;
  for (long n = 3; KilledAt(point, n, train); n += 1 + n / 2, ++kills) {
    const std::string when = std::string(point) + ":" + std::to_string(n);
    auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok()) << when;
    if (in_memory == 0) {  // a scan of rows on disk waits for the writer's recovery
      ASSERT_EQ(Difference(RowsOf(**group, table), expected[(*group)->step()]), "") << when;
    }
    if (when.rfind("publish.moves", 0) == 0 || when.rfind("record_store_dropped", 0) == 0) {
      // Evicted rows are absent, although the killed writer has left them in the index.
      ExpectLookups(**group, table, seen, expected[(*group)->step()]);
      if (HasFatalFailure()) return;
    }
    auto writer = (*group)->OpenWriter();
    ASSERT_TRUE(writer.ok()) << when << ": " << writer.status().message();
    ASSERT_TSPS_OK((*writer)->Verify());
    ASSERT_EQ(Difference(RowsOf(**group, table), expected[(*group)->step()]), "") << when;
  }
  EXPECT_GE(kills, 2) << "the writer passes the point too rarely";
  auto group = Group::Open(dir_ / "g");
  ASSERT_EQ((*group)->step(), kSteps);
  EXPECT_EQ(Difference(RowsOf(**group, table), expected[kSteps]), "");
}

TEST_P(EvictionKillTest, EveryKillLeavesAWholeStep) { KillAt(GetParam(), 0); }

std::string NameOfPoint(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Points, EvictionKillTest,
                         ::testing::Values("undo.reserved", "undo.record", "undo.block",
                                           "begin.undo_valid", "begin.odd", "apply.row",
                                           "erase.entry", "commit.insert", "publish.record",
                                           "publish.even", "split.undo", "split.rebuilt",
                                           "reserve.grown"),
                         NameOfPoint);

// The same with rows on disk.
class TieredEvictionKillTest : public EvictionKillTest {};

TEST_P(TieredEvictionKillTest, EveryKillLeavesAWholeStep) { KillAt(GetParam(), 1000); }

INSTANTIATE_TEST_SUITE_P(Points, TieredEvictionKillTest,
                         ::testing::Values("begin.odd", "erase.entry", "publish.record",
                                           "publish.even", "publish.moves",
                                           "record_store_entered_one", "record_store_dropped_one"),
                         NameOfPoint);

#endif  // TFSPS_FAULT_POINTS

}  // namespace
}  // namespace tsps
