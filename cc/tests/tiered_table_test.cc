// Tiered tables keep a part of their rows in memory and the rest on disk. A table in memory gets
// the same changes, and must have the same rows.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "core/base/fault_point.h"
#include "core/group/row_gather.h"
#include "core/group/scan.h"
#include "core/tier/disk_totals.h"
#include "tests/group_fixture.h"
#include "tests/killed_at.h"

namespace tsps {
namespace {

constexpr size_t kDim = 3;
constexpr int64_t kKeys = 3100;
constexpr uint64_t kRowsInMemory = 1200;
constexpr float kRate[] = {0.5f, 1e-7f};

OptimizerConfig Adagrad() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kAdagrad;
  config.slot_init[0] = 0.1f;
  return config;
}

OptimizerConfig Sgd() {
  OptimizerConfig config;
  config.kind = OptimizerKind::kSgd;
  return config;
}

// The changes that a commit makes to a table.
struct Commit {
  std::vector<int64_t> updated, set, erased;
  std::vector<float> gradients, rows;

  static Commit Draw(std::mt19937_64& random, int64_t keys, size_t updates, size_t others) {
    Commit commit;
    std::set<int64_t> drawn;
    const auto draw = [&](size_t n) {
      std::vector<int64_t> chosen;
      while (chosen.size() < n) {
        // Half of the keys are from a few, which stay in memory.
        const auto key = static_cast<int64_t>(
            random() % static_cast<uint64_t>(random() % 2 == 0 ? keys / 16 : keys));
        if (drawn.insert(key).second) chosen.push_back(key);
      }
      return chosen;
    };
    commit.updated = draw(updates);
    commit.set = draw(random() % (others + 1));
    commit.erased = draw(random() % (others + 1));
    for (size_t i = 0; i < commit.updated.size() * kDim; ++i) {
      commit.gradients.push_back(static_cast<float>(random() % 64) / 8 - 4);
    }
    for (size_t i = 0; i < commit.set.size() * kDim; ++i) {
      commit.rows.push_back(static_cast<float>(random() % 64));
    }
    return commit;
  }

  void AddTo(RowChanges* changes, int table, size_t n_hyper) const {
    if (!updated.empty()) {
      changes->updates.push_back(
          {table, updated.data(), gradients.data(), updated.size(), kRate, n_hyper});
    }
    if (!set.empty()) {
      const PlaneValues values{PlaneRole::kEmbedding, "embedding", kDim * sizeof(float),
                               rows.data()};
      changes->writes.push_back({table, set.data(), set.size(), {values}});
    }
    if (!erased.empty()) changes->erases.push_back({table, erased.data(), erased.size()});
  }
};

// A table in memory and a tiered table that get the same changes.
class TieredTableTest : public GroupTest {
 protected:
  using Rows = std::map<int64_t, std::string>;  // by key: the bytes in all planes

  void SetUp() override {
    GroupTest::SetUp();
    plain_ = Create("plain", 1, {});
    tiered_ = Create("tiered", 2, {dir_ / "disk", Memory()});
  }

  static TableConfig Config(const std::string& name, uint64_t salt, const TieredStorage& storage) {
    TableConfig config = MakeConfig(name, kDim, salt);
    config.initializer.salt = 1;  // the same initial rows
    config.metadata.push_back({"count", PlaneType::kUint32, 1, 7});
    config.storage = storage;
    return config;
  }
  // The bytes of memory that kRowsInMemory rows with Adagrad take.
  static uint64_t Memory() {
    const PlaneList planes = PlanesOf(Config("t", 1, {}), Adagrad(), 1, 1);
    return MemoryFor(kRowsInMemory, RowCost(planes), 0);
  }
  int Create(const std::string& name, uint64_t salt, const TieredStorage& storage) {
    const auto table = writer_->CreateTable(Config(name, salt, storage));
    EXPECT_TRUE(table.ok()) << table.status().message();
    return table.ok() ? *table : -1;
  }
  void Bind(const OptimizerConfig& config) {
    for (const int table : {plain_, tiered_}) {
      ASSERT_TSPS_OK(writer_->BindOptimizer(table, config, true));
    }
    n_hyper_ = static_cast<size_t>(HyperCount(config.kind));
  }

  Status Apply(const Commit& commit) {
    RowChanges changes;
    if (!commit.updated.empty()) changes.step = group_->step() + 1;
    commit.AddTo(&changes, plain_, n_hyper_);
    commit.AddTo(&changes, tiered_, n_hyper_);
    TSPS_RETURN_IF_ERROR(writer_->Prepare(changes, executor_));
    writer_->Publish();
    return Status();
  }

  std::vector<float> Lookup(Group& group, int table, const std::vector<int64_t>& keys) {
    const auto config = group.Config(table);
    EXPECT_TRUE(config.ok());
    RowGather gather(*config, table, keys.data(), keys.size());
    std::vector<float> rows(keys.size() * kDim);
    const Status status = group.Read([&](const ReadView& view) {
      gather.Find(view, executor_);
      gather.CopyAll(rows.data(), executor_);
      return gather.status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return rows;
  }

  static Rows Dump(Scan& scan, int table, Status* status) {
    constexpr size_t kRows = 700;
    const PlaneList& list = scan.Planes(table);
    std::vector<std::string> values(list.planes.size());
    char* planes[kMaxPlanes] = {};
    for (size_t p = 0; p < values.size(); ++p) {
      values[p].resize(kRows * list.planes[p].row_bytes);
      planes[p] = values[p].data();
    }
    std::vector<int64_t> keys(kRows);
    Rows rows;
    while (true) {
      const auto n = scan.Next(table, kRows, keys.data(), planes);
      if (!n.ok()) *status = n.status();
      if (!n.ok() || *n == 0) return rows;
      for (size_t i = 0; i < *n; ++i) {
        std::string& row = rows[keys[i]];
        if (!row.empty()) *status = Error(Code::kInternal, "key ", keys[i], " occurs twice");
        for (size_t p = 0; p < values.size(); ++p) {
          const size_t bytes = list.planes[p].row_bytes;
          row += values[p].substr(i * bytes, bytes);
        }
      }
    }
  }
  Rows Dump(Group& group, int table) {
    const auto scan = Scan::Begin(group, {table});
    EXPECT_TRUE(scan.ok()) << scan.status().message();
    if (!scan.ok()) return {};
    Status status;
    const Rows rows = Dump(**scan, table, &status);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ((*scan)->RowsOf(table), rows.size());
    return rows;
  }

  void ExpectEqual() {
    const Rows rows = Dump(*group_, tiered_);
    const Rows expected = Dump(*group_, plain_);
    EXPECT_EQ(rows.size(), expected.size());
    for (const auto& [key, row] : expected) {
      const auto entry = rows.find(key);
      ASSERT_TRUE(entry != rows.end() && entry->second == row) << "key " << key;
    }
    ASSERT_TSPS_OK(group_->Verify(tiered_));
    EXPECT_EQ(Stats(tiered_).rows, rows.size());
    if (Stats(tiered_).optimizer.kind == OptimizerKind::kAdagrad) {
      EXPECT_LE(Stats(tiered_).row_capacity, kRowsInMemory);
    }
    std::vector<int64_t> keys(kKeys + 10);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    EXPECT_EQ(Lookup(*group_, tiered_, keys), Lookup(*group_, plain_, keys));
  }
  TableStats Stats(int table) {
    TableStats stats;
    const Status status = group_->Read([&](const ReadView& view) {
      stats = view.Stats(table);
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return stats;
  }
  Changes ChangedSince(int table, uint32_t generation) {
    const auto scan = Scan::Begin(*group_, {table});
    EXPECT_TRUE(scan.ok()) << scan.status().message();
    auto changes = (*scan)->ChangedSince(table, generation);
    EXPECT_TRUE(changes.ok()) << changes.status().message();
    std::sort(changes->written.begin(), changes->written.end());
    return *changes;
  }

  int plain_ = 0, tiered_ = 0;
  size_t n_hyper_ = 0;
};

TEST_F(TieredTableTest, RandomCommitsLeaveWhatATableInMemoryHas) {
  std::mt19937_64 random(5);
  Bind(Adagrad());
  uint32_t generation = 0;
  for (int commit = 1; commit <= 240; ++commit) {
    // Every seventh commit has no updates, and is not a step.
    const size_t updates = commit % 7 == 0 ? 0 : random() % 500;
    ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, updates, 40)));
    const Commit sample = Commit::Draw(random, kKeys, 200, 0);
    ASSERT_EQ(Lookup(*group_, tiered_, sample.updated), Lookup(*group_, plain_, sample.updated));
    if (commit % 30 == 0) {
      ExpectEqual();
      const Changes changes = ChangedSince(tiered_, generation);
      const Changes expected = ChangedSince(plain_, generation);
      EXPECT_EQ(changes.written, expected.written);
      EXPECT_EQ(changes.erased, expected.erased);
      EXPECT_EQ(changes.everything, expected.everything);
      const auto mark = writer_->MarkChanges();
      ASSERT_TRUE(mark.ok());
      generation = *mark;
    }
    if (commit % 50 == 0) Reopen();
    if (commit == 100) Bind(Sgd());
    if (commit == 160) Bind(Adagrad());
  }
  EXPECT_GT(Stats(tiered_).rows_on_disk, 1000u);
  ASSERT_TSPS_OK(writer_->RemoveTable(tiered_));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "disk"));
}

// The reader has another Group of the same folder, like a reader in another process.
TEST_F(TieredTableTest, ScansAndLookupsBesideTheWriterAreOfOneState) {
  Bind(Adagrad());
  std::mt19937_64 random(6);
  ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 1000, 0)));
  ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 1000, 0)));
  auto reader_group = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader_group.ok());
  std::atomic<bool> stop{false};
  std::atomic<size_t> scans{0};
  std::thread reader([&] {
    while (!stop.load()) {
      // In one state both tables are equal.
      const auto scan = Scan::Begin(**reader_group, {plain_, tiered_});
      ASSERT_TRUE(scan.ok()) << scan.status().message();
      Status status;
      const Rows tiered = Dump(**scan, tiered_, &status);
      ASSERT_TRUE(status.ok()) << status.message();
      const Rows plain = Dump(**scan, plain_, &status);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(tiered == plain) << tiered.size() << " " << plain.size();
      ++scans;
    }
  });
  for (int commit = 0; commit < 600 || scans.load() < 20; ++commit) {
    ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, random() % 300, 30)));
  }
  stop = true;
  reader.join();
  ExpectEqual();
}

TEST_F(TieredTableTest, ReadersBesideASealedCommitSeeTheStateBefore) {
  Bind(Adagrad());
  std::mt19937_64 random(8);
  for (int i = 0; i < 3; ++i) ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 1000, 0)));
  auto reader = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader.ok());
  std::vector<int64_t> keys(kKeys);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  for (int round = 0; round < 8; ++round) {
    const Rows plain = Dump(*group_, plain_), tiered = Dump(*group_, tiered_);
    const std::vector<float> rows = Lookup(*group_, tiered_, keys);
    const Commit commit = Commit::Draw(random, kKeys, 300, 40);
    RowChanges changes;
    changes.step = group_->step() + 1;
    commit.AddTo(&changes, plain_, n_hyper_);
    commit.AddTo(&changes, tiered_, n_hyper_);
    ASSERT_TSPS_OK(writer_->Prepare(changes, executor_));
    writer_->Write();
    writer_->Seal({*changes.step, 7, 2});
    EXPECT_EQ(Lookup(**reader, tiered_, keys), rows);
    ASSERT_TSPS_OK((*reader)->Announce(tiered_, keys.data(), keys.size(), 1).status());
    const auto scan = Scan::Begin(**reader, {plain_, tiered_});
    ASSERT_TRUE(scan.ok()) << scan.status().message();
    if (round % 2 == 0) {
      writer_->Publish();
    } else {
      writer_->Abort();
    }
    for (int i = 0; i < 2; ++i) ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 300, 40)));
    Status status;
    EXPECT_TRUE(Dump(**scan, tiered_, &status) == tiered) << round;
    EXPECT_TRUE(Dump(**scan, plain_, &status) == plain) << round;
    ASSERT_TSPS_OK(status);
  }
  ExpectEqual();
}

#ifdef TFSPS_FAULT_POINTS
TEST_F(TieredTableTest, WhereNoThreadCanBeStartedCommitsAreMadeAndCompactionWaits) {
  Bind(Adagrad());
  std::mt19937_64 random(9);
  FailAt("thread", 1, EAGAIN);
  for (int i = 0; i < 60; ++i) ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 400, 40)));
  FailAt("", 0, 0);
  for (int i = 0; i < 60; ++i) ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 400, 40)));
  ExpectEqual();
}
#endif

TEST_F(TieredTableTest, WhatCannotBeIsRefusedWithTheNumbers) {
  Bind(Adagrad());
  const auto refused = [&](const TieredStorage& storage, Code code, const std::string& text) {
    const auto table = writer_->CreateTable(Config("other", 3, storage));
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.status().code(), code) << table.status().message();
    EXPECT_NE(table.status().message().find(text), std::string::npos) << table.status().message();
  };
  refused({"disk", Memory()}, Code::kInvalidArgument, "must be an absolute path");
  refused({dir_ / "small", 1 << 20}, Code::kInvalidArgument, "has no room for 64 of its rows");
  refused({dir_ / "disk", Memory()}, Code::kAlreadyExists, "has the rows of another table");
  std::filesystem::create_directory(dir_ / "full");
  std::filesystem::permissions(dir_ / "full", std::filesystem::perms::owner_all);
  fclose(fopen((dir_ / "full/mine").c_str(), "w"));
  refused({dir_ / "full", Memory()}, Code::kAlreadyExists, "is not empty, and no table's folder");
  EXPECT_TRUE(std::filesystem::exists(dir_ / "full/mine"));

  std::mt19937_64 random(7);
  const Commit large = Commit::Draw(random, kKeys, kRowsInMemory + 1, 0);
  const Status status = Apply(large);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("a change of 1201 rows at once"), std::string::npos)
      << status.message();
  EXPECT_EQ(group_->step(), 0u);
  const Commit fits = Commit::Draw(random, kKeys, kRowsInMemory, 0);
  ASSERT_TSPS_OK(Apply(fits));
  ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, kRowsInMemory, 0)));
  ExpectEqual();
}

TEST(MemoryPlanTest, TheLeastMemoryForRowsHasSpaceForThem) {
  for (const uint64_t row_bytes : {24u, 140u, 4000u}) {
    for (const uint64_t rows : {1u, 64u, 5000u, 100'000u, 3'000'000u}) {
      for (const uint64_t most : {uint64_t{0}, 4 * rows}) {
        const uint64_t memory = MemoryFor(rows, row_bytes, most);
        EXPECT_GE(PlanMemory({"/d", memory}, row_bytes, most).rows, rows);
        EXPECT_LE(PlanMemory({"/d", memory - 1000}, row_bytes, most).rows, rows);
      }
    }
  }
  EXPECT_LE(MemoryFor(64, 140, 0), 4u << 20);
}

TEST_F(TieredTableTest, DisksWithoutRoomAreRefusedBeforeAnythingIsMade) {
  TableConfig config = Config("large", 3, {dir_ / "large", uint64_t{1} << 60});
  const auto refused = [&](const std::string& text) {
    const auto table = writer_->CreateTable(config);
    EXPECT_EQ(table.status().code(), Code::kResourceExhausted);
    const std::string message(table.status().message());
    EXPECT_NE(message.find(text), std::string::npos) << message;
    EXPECT_NE(message.find(dir_ / "large"), std::string::npos) << message;
    EXPECT_NE(access((dir_ / "large").c_str(), F_OK), 0);
  };
  refused("less room than its memory of 1152921504606846976 bytes");
  config.max_rows = int64_t{1} << 50;  // the product exceeds 64 bits
  config.dim = 65536;
  refused("1125899906842624 rows of 262168 bytes can take");
  config.max_rows = 1000;
  config.dim = kDim;
  const auto small = writer_->CreateTable(config);
  ASSERT_TRUE(small.ok()) << small.status().message();
  // max_rows limits this number, however much memory the table may take.
  EXPECT_GE(Stats(*small).rows_to_stage, 1000u);
  EXPECT_LE(Stats(*small).rows_to_stage, 2000u);
}

TEST_F(TieredTableTest, ATableThatMemoryHasRoomForHasNothingOnDisk) {
  TableConfig config = Config("whole", 3, {dir_ / "whole", 0});
  config.max_rows = 1000;
  const PlaneList planes = PlanesOf(config, Adagrad(), 1, 1);
  config.storage.memory = MemoryFor(1000, RowCost(planes), 1000);
  const auto table = writer_->CreateTable(config);
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_TSPS_OK(writer_->BindOptimizer(*table, Adagrad(), true));
  Commit commit;
  commit.gradients.assign(100 * kDim, 1.0f);
  for (int64_t step = 0; step < 10; ++step) {
    commit.updated.clear();
    for (int64_t key = 0; key < 100; ++key) commit.updated.push_back(100 * step + key);
    RowChanges changes;
    changes.step = group_->step() + 1;
    commit.AddTo(&changes, *table, static_cast<size_t>(HyperCount(Adagrad().kind)));
    ASSERT_TSPS_OK(writer_->Prepare(changes, executor_));
    writer_->Publish();
  }
  EXPECT_EQ(Stats(*table).rows, 1000u);
  EXPECT_EQ(Stats(*table).rows_on_disk, 0u);
}

TEST_F(TieredTableTest, MoreRowsThanMemoryHasRoomForAreSetInParts) {
  std::vector<int64_t> keys(kKeys);
  std::vector<float> rows(keys.size() * kDim);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  for (const int table : {plain_, tiered_}) {
    ASSERT_TSPS_OK(
        writer_->Assign(table, keys.data(), rows.data(), nullptr, keys.size(), executor_));
  }
  EXPECT_EQ(Lookup(*group_, tiered_, keys), rows);
  Bind(Adagrad());
  ExpectEqual();
  for (const int table : {plain_, tiered_}) {
    const auto erased = writer_->Erase(table, keys.data(), keys.size() / 2);
    ASSERT_TRUE(erased.ok()) << erased.status().message();
    EXPECT_EQ(*erased, keys.size() / 2);
  }
  ExpectEqual();
}

// Rows that were used once, long ago, are the first to leave memory, except if they are announced.
TEST_F(TieredTableTest, AnnouncedRowsStayUntilTheyAreNeededAndStagedOnesAreThere) {
  Bind(Adagrad());
  const auto update = [&](int64_t begin, int64_t end) {
    Commit commit;
    for (int64_t key = begin; key < end; ++key) commit.updated.push_back(key);
    commit.gradients.assign(commit.updated.size() * kDim, 1.0f);
    return Apply(commit);
  };
  std::vector<int64_t> announced(200), others(200);
  for (int64_t i = 0; i < 200; ++i) {
    announced[static_cast<size_t>(i)] = i;
    others[static_cast<size_t>(i)] = 200 + i;
  }
  const auto n_absent = [&](const std::vector<int64_t>& keys) {
    const auto result = group_->Announce(tiered_, keys.data(), keys.size(), 0);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result->absent.size();
  };
  ASSERT_TSPS_OK(update(0, 400));
  const auto announcement = group_->Announce(tiered_, announced.data(), announced.size(), 10);
  ASSERT_TRUE(announcement.ok());
  EXPECT_TRUE(announcement->absent.empty());
  EXPECT_EQ(announcement->step, 1u);
  EXPECT_GT(announcement->room, 0u);
  const auto others_in_turn = [&](int64_t step) {  // more rows than memory has places for
    const int64_t begin = 400 + 400 * (step % 6);
    return update(begin, begin + 400);
  };
  for (int64_t step = 1; step < 10; ++step) ASSERT_TSPS_OK(others_in_turn(step));
  EXPECT_EQ(n_absent(announced), 0u);
  EXPECT_EQ(n_absent(others), others.size());
  for (int64_t step = 10; step < 20; ++step) ASSERT_TSPS_OK(others_in_turn(step));
  EXPECT_EQ(n_absent(announced), announced.size());  // no longer announced

  // Rows that another Group stages, as in another process, are in memory for all processes.
  auto other_group = Group::Open(dir_ / "g");
  ASSERT_TRUE(other_group.ok());
  ASSERT_TSPS_OK((*other_group)->Stage(tiered_, announced.data(), announced.size(), 10));
  const uint64_t late = DiskTotals::OfProcess().late;
  const std::vector<float> rows = Lookup(*group_, tiered_, announced);
  ASSERT_TSPS_OK(update(0, 200));
  EXPECT_EQ(DiskTotals::OfProcess().late, late);
  EXPECT_EQ(n_absent(announced), 0u);
  Lookup(*group_, tiered_, others);
  EXPECT_GT(DiskTotals::OfProcess().late, late);

  // Even if all rows in memory are announced, other rows enter.
  std::vector<int64_t> all_keys(kKeys);
  for (size_t i = 0; i < all_keys.size(); ++i) all_keys[i] = static_cast<int64_t>(i);
  ASSERT_TSPS_OK((*other_group)->Stage(tiered_, all_keys.data(), all_keys.size(), 100));
  ASSERT_TSPS_OK(update(0, 1000));
  ASSERT_TSPS_OK((*other_group)->Stage(tiered_, all_keys.data(), all_keys.size(), 100));
  ASSERT_TSPS_OK(update(1000, 2000));
  ASSERT_TSPS_OK(group_->Verify(tiered_));
}

#ifdef TFSPS_FAULT_POINTS
// The disk is full or fails at any access of a step, an assign or a binding. The error names the
// file, and nothing has changed. Once the disk works again, the table can be changed again.
class FailingDiskTest : public TieredTableTest {
 protected:
  ~FailingDiskTest() override { FailAt("", 0, 0); }

  // Changes both tables, in one mutation or by one call each.
  Status Change(int n) {
    std::mt19937_64 random(static_cast<uint64_t>(n));
    if (n % 5 == 4) {
      const Commit commit = Commit::Draw(random, kKeys, 700, 0);
      // The tiered table is first: if it fails, the other one stays unchanged, too.
      for (const int table : {tiered_, plain_}) {
        TSPS_RETURN_IF_ERROR(writer_->Assign(table, commit.updated.data(), commit.gradients.data(),
                                             nullptr, commit.updated.size(), executor_));
      }
      return Status();
    }
    if (n % 17 == 16) {
      const OptimizerConfig next = n_hyper_ == 1 ? Adagrad() : Sgd();
      for (const int table : {tiered_, plain_}) {
        TSPS_RETURN_IF_ERROR(writer_->BindOptimizer(table, next, true));
      }
      n_hyper_ = static_cast<size_t>(HyperCount(next.kind));
      return Status();
    }
    return Apply(Commit::Draw(random, kKeys, 300, 30));
  }
};

TEST_F(FailingDiskTest, NothingIsLostAndItGoesOn) {
  Bind(Adagrad());
  int n = 0;
  for (; n < 12; ++n) ASSERT_TSPS_OK(Change(n));
  for (const char* point : {"tier_create", "tier_name", "tier_write", "tier_read"}) {
    size_t failures = 0;
    for (int round = 0; round < 20; ++round, ++n) {
      const int error = round % 2 == 0 && point != std::string("tier_read") ? ENOSPC : EIO;
      // Most changes make no file, but every binding does.
      const bool makes_files = strcmp(point, "tier_create") == 0 || strcmp(point, "tier_name") == 0;
      if (makes_files) n += 16 - n % 17;
      FailAt(point, makes_files ? 1 : 1 + round % 7, error);
      const uint64_t step = group_->step();
      const Status status = Change(n);
      FailAt("", 0, 0);
      if (!status.ok()) {
        ++failures;
        EXPECT_NE(status.message().find(dir_ / "disk"), std::string::npos) << status.message();
        EXPECT_NE(status.message().find(strerror(error)), std::string::npos) << status.message();
        EXPECT_EQ(group_->step(), step);
        if (n % 5 != 4) ExpectEqual();  // an assign works in parts
        ASSERT_FALSE(HasFatalFailure()) << point << " " << round;
        if (round % 3 == 0) Reopen();
        ASSERT_TSPS_OK(Change(n));
      }
      ExpectEqual();
      ASSERT_FALSE(HasFatalFailure()) << point << " " << round;
    }
    EXPECT_GT(failures, 3u) << point;
  }
}

// Each read of a binding fails in turn, until the binding has fewer reads. The last reads are of
// the new files.
TEST_F(FailingDiskTest, ABindingIsDoneWholeOrNotAtAll) {
  Bind(Adagrad());
  int n = 0;
  for (; n < 12; ++n) ASSERT_TSPS_OK(Change(n));
  size_t failures = 0, bound = 0;
  for (long read = 1; bound < 4; ++read, n += 2) {
    const OptimizerConfig next = n_hyper_ == 1 ? Adagrad() : Sgd();
    FailAt("tier_read", read, EIO);
    const Status status = writer_->BindOptimizer(tiered_, next, true);
    FailAt("", 0, 0);
    ++(status.ok() ? bound : failures);
    if (status.ok()) {
      ASSERT_TSPS_OK(writer_->BindOptimizer(plain_, next, true));
      n_hyper_ = static_cast<size_t>(HyperCount(next.kind));
    }
    ExpectEqual();
    if (n % 5 == 4 || n % 17 == 16) ++n;
    ASSERT_TSPS_OK(Change(n));
    ExpectEqual();
    ASSERT_FALSE(HasFailure()) << "read " << read << ": " << status.message();
  }
  EXPECT_GE(failures, 3u);
}

TEST_F(TieredTableTest, LookupsTakeKeysThatRepeat) {
  Bind(Adagrad());
  std::mt19937_64 random(1);
  for (int n = 0; n < 12; ++n) ASSERT_TSPS_OK(Apply(Commit::Draw(random, kKeys, 700, 40)));
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < kKeys + 20; ++key) {  // some never had a row
    for (int64_t times = 0; times <= key % 3; ++times) keys.push_back(key * 7 % (kKeys + 20));
  }
  const std::vector<float> rows = Lookup(*group_, tiered_, keys);
  EXPECT_EQ(rows, Lookup(*group_, plain_, keys));
  for (size_t i = 0; i < keys.size(); i += 97) {
    const std::vector<float> row = Lookup(*group_, tiered_, {keys[i]});
    EXPECT_TRUE(std::equal(row.begin(), row.end(), &rows[i * kDim])) << keys[i];
  }
}

TEST_F(FailingDiskTest, ReadersSayWhichFileCannotBeRead) {
  Bind(Adagrad());
  for (int n = 0; n < 12; ++n) ASSERT_TSPS_OK(Change(n));
  std::vector<int64_t> keys(kKeys);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const auto read = [&] {
    const auto config = group_->Config(tiered_);
    RowGather gather(*config, tiered_, keys.data(), keys.size());
    std::vector<float> rows(keys.size() * kDim);
    return group_->Read([&](const ReadView& view) {
      gather.Find(view, executor_);
      gather.CopyAll(rows.data(), executor_);
      return gather.status();
    });
  };
  FailAt("tier_read", 1, EIO);
  const Status lookup = read();
  EXPECT_NE(lookup.message().find("cannot read " + (dir_ / "disk")), std::string::npos)
      << lookup.message();
  EXPECT_FALSE(group_->Verify(tiered_).ok());
  const auto scan = Scan::Begin(*group_, {tiered_});
  ASSERT_TRUE(scan.ok());
  Status scanned;
  Dump(**scan, tiered_, &scanned);
  EXPECT_FALSE(scanned.ok());
  FailAt("", 0, 0);
  ASSERT_TSPS_OK(read());
  ExpectEqual();
}

// The writer is killed at a point of a step, a demotion, a binding or a removal. Afterwards both
// tables must have the same rows.
class KilledTieredTableTest : public TieredTableTest {
 protected:
  // Kills the writer. Returns the number of checks that fail afterwards.
  size_t Violations(const std::string& point, long n, bool* killed) {
    writer_.reset();
    group_.reset();
    dir_.Clear();
    SetUp();
    Bind(Adagrad());
    writer_.reset();
    group_.reset();
    *killed = KilledAt(point, n, [&] {
      Reopen();
      std::mt19937_64 random(8);
      for (int commit = 0; commit < 40; ++commit) {
        if (!Apply(Commit::Draw(random, kKeys, 300, 30)).ok()) _exit(1);
        if (commit % 8 == 7 && !writer_->MarkChanges().ok()) _exit(1);
        if (commit == 20) Bind(Sgd());
        if (commit == 30) Bind(Adagrad());
      }
    });
    Reopen();
    if (writer_ == nullptr) return 1;
    const auto optimizer = [&](int table) { return Stats(table).optimizer.kind; };
    n_hyper_ = static_cast<size_t>(HyperCount(optimizer(plain_)));
    size_t wrong = 0;
    // The kill may come between the bindings of the two tables.
    if (optimizer(tiered_) == optimizer(plain_)) {
      wrong += WithoutChanged(Dump(*group_, tiered_)) != WithoutChanged(Dump(*group_, plain_));
    }
    const Status verified = group_->Verify(tiered_);
    EXPECT_TRUE(verified.ok()) << verified.message();
    wrong += !verified.ok();
    // Both tables can be trained again.
    Bind(Sgd());
    Bind(Adagrad());
    std::mt19937_64 random(9);
    EXPECT_TRUE(Apply(Commit::Draw(random, kKeys, 300, 30)).ok());
    wrong += WithoutChanged(Dump(*group_, tiered_)) != WithoutChanged(Dump(*group_, plain_));
    return wrong;
  }
  // The rows without the change generation. After a kill more rows may be marked as changed.
  static Rows WithoutChanged(Rows rows) {
    for (auto& [key, row] : rows) row.replace(row.size() - 2 * sizeof(uint32_t), 4, "....");
    return rows;
  }
};

TEST_F(KilledTieredTableTest, EveryRowIsInOneTierAfterAKill) {
  for (const char* point :
       {"tier_file_created", "tier_write", "tier_appended", "record_moves_written",
        "record_moves_declared", "record_store_entered_one", "record_store_dropped_one",
        "record_index_copied", "commit.insert", "erase.entry", "apply.row", "undo.record",
        "bind.files", "bind.published", "remove.records", "split.rebuilt"}) {
    size_t kills = 0;
    for (const long n : {1, 3, 40, 1500}) {
      bool killed = false;
      EXPECT_EQ(Violations(point, n, &killed), 0u) << point << " " << n;
      kills += killed;
    }
    EXPECT_GT(kills, 0u) << point;
  }
}
#endif

}  // namespace
}  // namespace tsps
