// What a record log meets in weeks: more appends than there are places, thousands of files, large
// steps, a full disk, and errors of the disk.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <set>

#include "core/base/fault_point.h"
#include "core/tier/record_scan.h"
#include "tests/two_tiers.h"

namespace tsps {
namespace {

using Rows = std::vector<std::pair<int64_t, uint32_t>>;

Rows Versioned(const std::vector<int64_t>& keys, uint32_t version) {
  Rows rows;
  for (const int64_t key : keys) rows.push_back({key, version});
  return rows;
}

std::vector<int64_t> From(int64_t first, int64_t n) {
  std::vector<int64_t> keys = Range(n);
  for (int64_t& key : keys) key += first;
  return keys;
}

size_t OpenDescriptors() {
  size_t n = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++n;
  closedir(folder);
  return n - 3;  // ".", ".." and the folder
}

// Returns the keys that a scan of the committed state visits, and those that it finds among `keys`.
std::pair<std::vector<int64_t>, size_t> Scanned(RecordStore& store,
                                                const std::vector<int64_t>& keys) {
  const auto scan = RecordScan::Begin(store, store.next_number() - 1, [] { return Status(); });
  EXPECT_TRUE(scan.ok() && *scan != nullptr);
  std::vector<int64_t> visited;
  for (bool more = true; more;) {
    const auto next = (*scan)->Next([&](int64_t key, const char*) { visited.push_back(key); });
    EXPECT_TRUE(next.ok()) << next.status().message();
    more = next.ok() && *next;
  }
  std::sort(visited.begin(), visited.end());
  std::atomic<size_t> found{0};
  EXPECT_TRUE((*scan)->Find(keys.data(), keys.size(), [&](size_t, const char*) { ++found; }).ok());
  return {visited, found.load()};
}

// Puts a file into the log that a mutation long ago, or long after, could have made.
void PutFile(const TwoTiers& tiers, uint32_t number, uint64_t sequence) {
  ASSERT_TSPS_OK(
      RecordFile::Create(tiers.disk(), {number, RecordKind::kRows, sequence}, tiers.Layout())
          .status());
}

TEST(RecordLife, ColdRowsStayRowsOfTheStateHoweverMuchWasAppendedSince) {
  for (const uint64_t sequence : {uint64_t{1} << 20, uint64_t{1} << 33, uint64_t{1} << 62}) {
    TempDir dir;
    TwoTiers tiers(dir);
    ASSERT_TSPS_OK(tiers.Create());
    ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(From(0, 20), 1), true));
    PutFile(tiers, tiers.Layout().max_files() / 2 + 1, sequence);
    ASSERT_TSPS_OK(tiers.Open());
    ASSERT_TSPS_OK(tiers.store().MakeWritable(1));
    ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(From(20, 10), 1), true));
    const auto [visited, found] = Scanned(tiers.store(), Range(40));
    EXPECT_EQ(visited, Range(30)) << sequence;
    EXPECT_EQ(found, 30u);
  }
}

TEST(RecordLife, RestartsContinueAfterTheNewestFileAlsoWhenNumbersBeginAgain) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(From(0, 20), 1), true));  // file 0
  PutFile(tiers, tiers.Layout().max_files() - 1, 1000);
  std::vector<int64_t> all = Range(20);
  for (uint32_t restart = 1; restart <= 4; ++restart) {
    ASSERT_TSPS_OK(tiers.Open());
    ASSERT_TSPS_OK(tiers.store().MakeWritable(restart));
    const std::vector<int64_t> more = From(20 * restart, 20);
    ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(more, 1), true));
    all.insert(all.end(), more.begin(), more.end());
    EXPECT_EQ(Scanned(tiers.store(), all), std::make_pair(all, all.size())) << restart;
  }
}

TEST(RecordLife, AStateWithoutFilesIsStillOlderThanLaterOnes) {
  TempDir dir;
  TwoTiers tiers(dir), reader(dir);
  ASSERT_TSPS_OK(tiers.Create());
  for (uint32_t step = 0; step < 3; ++step) {
    ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(Range(2'000), 1), true));
    ASSERT_TSPS_OK(tiers.Mutate(Range(2'000), {}, true));
  }
  ASSERT_TSPS_OK(tiers.Mutate({}, {}, true));
  const uint32_t committed = tiers.store().next_number() - 1;
  ASSERT_TSPS_OK(tiers.Open());
  ASSERT_TSPS_OK(tiers.store().MakeWritable(committed));
  ASSERT_TSPS_OK(reader.Open());
  const auto scan = RecordScan::Begin(reader.store(), committed, [] { return Status(); });
  ASSERT_TSPS_OK(scan.status());
  ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(Range(100), 2), true, nullptr, /*scans=*/true));
  for (bool more = true; more;) {
    const auto next = (*scan)->Next([](int64_t, const char*) { ADD_FAILURE() << "a later row"; });
    ASSERT_TSPS_OK(next.status());
    more = *next;
  }
}

// 1,500 files, of which a process with 256 descriptors may have 16 open.
TEST(RecordLife, ThousandsOfFilesNeedFewDescriptors) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  {
    TempDir dir;
    TwoTiers tiers(dir, 8 * 1024), reader(dir, 8 * 1024);  // 56 records per file
    ASSERT_TSPS_OK(tiers.Create());
    const size_t open_before = OpenDescriptors();
    constexpr int64_t kKeys = 1'500 * 56;
    for (int64_t first = 0; first < kKeys; first += kKeys / 10) {
      ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(From(first, kKeys / 10), 1), true));
    }
    EXPECT_LE(OpenDescriptors(), open_before + 18);
    ASSERT_TSPS_OK(reader.Open());
    std::mt19937_64 random(1);
    for (int read = 0; read < 3; ++read) {
      std::set<int64_t> keys;
      while (keys.size() < 4'000) keys.insert(static_cast<int64_t>(random() % kKeys));
      EXPECT_EQ(reader.Versions({keys.begin(), keys.end()}).size(), 4'000u);
    }
    EXPECT_LE(OpenDescriptors(), open_before + 36);
    const uint32_t committed = tiers.store().next_number() - 1;
    ASSERT_TSPS_OK(tiers.Open());
    ASSERT_TSPS_OK(tiers.store().MakeWritable(committed));
    EXPECT_EQ(Scanned(tiers.store(), Range(10)).first.size(), static_cast<size_t>(kKeys));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// As many rows come and go in a step as compaction may read in several slices.
TEST(RecordLife, TheLogStaysShortWhenManyRowsMoveInEachStep) {
  TempDir dir;
  TwoTiers tiers(dir, 256 * 1024);
  ASSERT_TSPS_OK(tiers.Create());
  constexpr int64_t kKeys = 300'000;
  constexpr size_t kMoved = 20'000;
  ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(Range(kKeys), 1), true));
  std::mt19937_64 random(1);
  std::set<int64_t> here;
  double most = 0;
  for (int step = 0; step < 120; ++step) {
    std::set<int64_t> coming;
    while (coming.size() < kMoved) {
      const auto key = static_cast<int64_t>(random() % kKeys);
      if (here.count(key) == 0) coming.insert(key);
    }
    const Rows going = Versioned({here.begin(), here.end()}, 1);
    ASSERT_TSPS_OK(tiers.Mutate({coming.begin(), coming.end()}, going, true));
    here = coming;
    tiers.store().CompactAhead(4 * going.size() * TwoTiers::kPayload);
    tiers.store().AwaitCompaction();
    const auto live = static_cast<double>(tiers.store().rows() * tiers.store().record_bytes());
    if (step >= 40) most = std::max(most, static_cast<double>(tiers.store().log_bytes()) / live);
  }
  EXPECT_LE(most, 1.6);
}

#ifdef TFSPS_FAULT_POINTS
// Leaves garbage in the log: six of ten rows of each file are in memory.
void MakeGarbage(TwoTiers& tiers) {
  ASSERT_TSPS_OK(tiers.Create());
  ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(Range(20'000), 1), true));
  std::vector<int64_t> coming;
  for (int64_t key = 0; key < 20'000; ++key) {
    if (key % 10 < 6) coming.push_back(key);
  }
  ASSERT_TSPS_OK(tiers.Mutate(coming, {}, true));
}

TEST(RecordLife, AFullDiskDoesNotStopStepsThatMoveNothingOut) {
  TempDir dir;
  TwoTiers tiers(dir);
  MakeGarbage(tiers);
  const uint64_t bytes = tiers.store().log_bytes();
  FailAt("tier_write", 1, ENOSPC);
  for (int64_t key = 7; key < 200; key += 10) {
    ASSERT_TSPS_OK(tiers.Compact(1, 64 * 1024));
    EXPECT_EQ(tiers.store().compaction_status().code(),
              key == 7 ? Code::kOk : Code::kResourceExhausted);
    ASSERT_TSPS_OK(tiers.Mutate({key}, {}, true));
  }
  const Status full = tiers.Mutate({}, {{7, 2}}, true);
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_NE(full.message().find(": 72 bytes of rows were to be written, and the disk has "),
            std::string::npos)
      << full.message();
  FailAt("", 0, 0);
  ASSERT_TSPS_OK(tiers.Mutate({}, {{7, 2}}, true));
  ASSERT_TSPS_OK(tiers.Compact(60, 64 * 1024));
  EXPECT_LT(tiers.store().log_bytes(), bytes * 7 / 10);
}

TEST(RecordLife, CompactionTriesAgainAfterAnErrorOfTheDisk) {
  TempDir dir;
  TwoTiers tiers(dir);
  MakeGarbage(tiers);
  const uint64_t bytes = tiers.store().log_bytes();
  FailAt("tier_read", 1, EIO);
  for (int slice = 0; slice < 40; ++slice) ASSERT_TSPS_OK(tiers.Compact(1, 64 * 1024));
  EXPECT_NE(tiers.store().compaction_status().message().find("cannot read"), std::string::npos);
  FailAt("", 0, 0);
  ASSERT_TSPS_OK(tiers.Compact(80, 64 * 1024));
  EXPECT_TRUE(tiers.store().compaction_status().ok());
  EXPECT_LT(tiers.store().log_bytes(), bytes * 7 / 10);
}

TEST(RecordLife, AWriteErrorBeginsANewFile) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  ASSERT_TSPS_OK(tiers.Mutate({}, {{1, 1}}, true));
  FailAt("tier_write", 1, EIO);
  EXPECT_FALSE(tiers.Mutate({}, {{2, 1}}, true).ok());
  FailAt("", 0, 0);
  ASSERT_TSPS_OK(tiers.Mutate({}, {{2, 1}}, true));
  EXPECT_EQ(RecordFilesIn(tiers.disk()), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(tiers.Versions(Range(4)).size(), 2u);
}
#endif

}  // namespace
}  // namespace tsps
