#include "core/tier/record_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "core/tier/record_scan.h"
#include "tests/group_fixture.h"
#include "tests/killed_at.h"
#include "tests/temp_dir.h"
#include "tests/two_tiers.h"

namespace tsps {
namespace {

size_t FilesOn(const std::string& disk) {
  const auto entries = std::filesystem::directory_iterator(disk);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// Random mutations, some of them undone, with compaction in between. A new reader has the same
// rows.
TEST(RecordStore, MutationsDoWhatTwoMapsDo) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  constexpr int64_t kKeys = 3000;
  std::mt19937_64 random(2);
  std::map<int64_t, uint32_t> memory, disk;
  for (int64_t key = 0; key < kKeys; ++key) memory[key] = 0;
  for (uint32_t step = 1; step <= 120; ++step) {
    std::vector<int64_t> entering;
    std::vector<std::pair<int64_t, uint32_t>> leaving;
    for (const auto& [key, version] : disk) {
      if (random() % 4 == 0) entering.push_back(key);
    }
    for (const auto& [key, version] : memory) {
      if (random() % 3 == 0) leaving.push_back({key, version});
    }
    const bool publish = random() % 5 != 0;
    ASSERT_TSPS_OK(tiers.Mutate(entering, leaving, publish));
    if (publish) {
      for (const int64_t key : entering) {
        memory[key] = (disk[key] + 1) % 256;
        disk.erase(key);
      }
      for (const auto& [key, version] : leaving) {
        disk[key] = version;
        memory.erase(key);
      }
    }
    ASSERT_TSPS_OK(tiers.Compact(step % 7, 16 * 1024));
    tiers.store().CompactAhead(16 * 1024);  // is finished by the next mutation
    EXPECT_EQ(tiers.store().rows(), disk.size());
    if (step % 40 == 0) {
      const uint32_t published = tiers.store().next_number() - 1;
      ASSERT_TSPS_OK(tiers.Open());
      EXPECT_EQ(tiers.Versions(Range(kKeys)), disk);
      ASSERT_TSPS_OK(tiers.store().MakeWritable(published));
    }
    if (step % 10 == 0) {
      ASSERT_EQ(tiers.Versions(Range(kKeys)), disk) << step;
    }
  }
}

TEST(RecordStore, TheLogStaysShortWhileRowsGoAndComeAndGo) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  std::vector<std::pair<int64_t, uint32_t>> all_rows;
  for (int64_t key = 0; key < 40'000; ++key) all_rows.push_back({key, 1});
  ASSERT_TSPS_OK(tiers.Mutate({}, all_rows, true));
  std::mt19937_64 random(3);
  double most = 0;
  for (int step = 0; step < 200; ++step) {  // ten times as many moves as the table has rows
    std::vector<int64_t> entering;
    std::vector<std::pair<int64_t, uint32_t>> leaving;
    for (int64_t key = static_cast<int64_t>(random() % 20); key < 40'000; key += 20) {
      entering.push_back(key);
      leaving.push_back({key, 1});
    }
    ASSERT_TSPS_OK(tiers.Mutate(entering, {}, true));
    ASSERT_TSPS_OK(tiers.Mutate({}, leaving, true));
    ASSERT_TSPS_OK(tiers.Compact(8, 64 * 1024));
    const RecordStore& store = tiers.store();
    const auto live_bytes = static_cast<double>(store.rows() * store.record_bytes());
    most = std::max(most, static_cast<double>(store.log_bytes()) / live_bytes);
  }
  EXPECT_LE(most, 1.6);
  EXPECT_EQ(tiers.Versions(Range(40'000)).size(), 40'000u);
}

// A step reads the places again that the lookup before it has found.
TEST(RecordStore, KnownPlacesAreReadAgainAlsoThoseThatCompactionHasMoved) {
  TempDir dir;
  TwoTiers tiers(dir);
  tiers.NoCache();
  ASSERT_TSPS_OK(tiers.Create());
  std::vector<std::pair<int64_t, uint32_t>> all_rows;
  for (int64_t key = 0; key < 20'000; ++key) all_rows.push_back({key, 1});
  ASSERT_TSPS_OK(tiers.Mutate({}, all_rows, true));
  std::vector<int64_t> staying, entering;
  for (int64_t key = 0; key < 20'000; ++key) (key % 3 == 0 ? staying : entering).push_back(key);
  for (int64_t key = 20'000; key < 20'100; ++key) staying.push_back(key);  // in neither tier
  std::vector<uint32_t> known(staying.size());
  const auto nothing = [](size_t, const char*) {};
  ASSERT_TSPS_OK(tiers.store().Read(staying.data(), staying.size(), false, known.data(), nothing));
  ASSERT_TSPS_OK(tiers.Mutate(entering, {}, true));
  ASSERT_TSPS_OK(tiers.Compact(12, 64 * 1024));
  std::vector<uint32_t> current(staying.size()), read_again = known;
  ASSERT_TSPS_OK(
      tiers.store().Read(staying.data(), staying.size(), false, current.data(), nothing));
  EXPECT_NE(known, current) << "compaction has moved no record";
  std::atomic<size_t> right{0};
  const auto visit = [&](size_t i, const char* payload) {
    char expected[TwoTiers::kPayload];
    TwoTiers::Fill(staying[i], 1, expected);
    right += std::memcmp(payload, expected, TwoTiers::kPayload) == 0;
  };
  ASSERT_TSPS_OK(
      tiers.store().ReadAgain(staying.data(), staying.size(), false, read_again.data(), visit));
  EXPECT_EQ(right.load(), staying.size() - 100);
  for (size_t i = 0; i < staying.size(); ++i) {
    ASSERT_TRUE(read_again[i] == current[i] || read_again[i] == known[i]) << staying[i];
    ASSERT_EQ(read_again[i] == kNoRecord, staying[i] >= 20'000) << staying[i];
  }
  // Places that have records of other keys are noticed.
  std::rotate(known.begin(), known.begin() + 1, known.end() - 100);
  right = 0;
  ASSERT_TSPS_OK(
      tiers.store().ReadAgain(staying.data(), staying.size(), false, known.data(), visit));
  EXPECT_EQ(right.load(), staying.size() - 100);
  EXPECT_EQ(known, current);
}

TEST(RecordStore, ReadersBesideTheWriterFindEveryRowThatStays) {
  TempDir dir;
  TwoTiers tiers(dir), reader(dir);
  ASSERT_TSPS_OK(tiers.Create());
  std::vector<std::pair<int64_t, uint32_t>> all_rows;
  for (int64_t key = 0; key < 6'000; ++key) all_rows.push_back({key, 1});
  ASSERT_TSPS_OK(tiers.Mutate({}, all_rows, true));
  ASSERT_TSPS_OK(reader.Open());
  std::atomic<bool> stop{false};
  size_t reads = 0;
  std::thread reader_thread([&] {
    while (!stop.load() || reads < 3) {
      EXPECT_EQ(reader.Versions(Range(1'000)).size(), 1'000u);
      ++reads;
    }
  });
  // Keys of 1,000 and more move between the tiers, and new keys are added, so that the index grows
  // and files are compacted.
  int64_t next = 10'000;
  for (int step = 0; step < 60; ++step) {
    std::vector<int64_t> entering;
    std::vector<std::pair<int64_t, uint32_t>> leaving;
    for (int64_t key = 1'000 + step % 3; key < 6'000; key += 3) entering.push_back(key);
    for (const int64_t key : entering) leaving.push_back({key, 1});
    ASSERT_TSPS_OK(tiers.Mutate(entering, {}, true));
    for (int i = 0; i < 500; ++i) leaving.push_back({next++, 1});
    ASSERT_TSPS_OK(tiers.Mutate({}, leaving, true));
    ASSERT_TSPS_OK(tiers.Compact(4, 64 * 1024));
  }
  stop = true;
  reader_thread.join();
}

// The writer looks for scans, a scan begins, and the writer removes a file that no state needs.
TEST(RecordStore, AScanBeginsWhileTheWriterRemovesAFileWithoutRows) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  std::vector<std::pair<int64_t, uint32_t>> all_rows;
  std::vector<int64_t> first;
  for (int64_t key = 0; key < 5'000; ++key) {
    all_rows.push_back({key, 1});
    if (key < 2'000) first.push_back(key);
  }
  ASSERT_TSPS_OK(tiers.Mutate({}, all_rows, true));
  ASSERT_TSPS_OK(tiers.Mutate(first, {}, true, nullptr, /*scans=*/true));
  const size_t files = FilesOn(tiers.disk());
  const auto scan = RecordScan::Begin(tiers.store(), 2, [] { return Status(); });
  ASSERT_TSPS_OK(scan.status());
  ASSERT_NE(*scan, nullptr);
  ASSERT_TSPS_OK(tiers.Mutate({}, {}, true));
  ASSERT_LT(FilesOn(tiers.disk()), files) << "no file was removed";
  std::vector<int64_t> keys;
  bool more = true;
  while (more) {
    const auto next = (*scan)->Next([&](int64_t key, const char*) { keys.push_back(key); });
    ASSERT_TSPS_OK(next.status());
    more = *next;
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys.size(), 3'000u);
  EXPECT_EQ(keys.front(), 2'000);
}

// A process opens the log while the group's writer removes files.
TEST(RecordStore, ALogIsOpenedWhileFilesAreRemoved) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int step = 0; step < 300; ++step) {
      std::vector<std::pair<int64_t, uint32_t>> leaving;
      for (int64_t key = 0; key < 4'000; ++key) leaving.push_back({key, 1});
      EXPECT_TRUE(tiers.Mutate({}, leaving, true).ok());
      EXPECT_TRUE(tiers.Mutate(Range(4'000), {}, true).ok());
    }
    done = true;
  });
  const auto threads = IoThreads::Start(1, 64 * 1024);
  ASSERT_TSPS_OK(threads.status());
  while (!done) {
    const Status opened = RecordLog::Open(tiers.disk(), tiers.Layout(), **threads).status();
    EXPECT_TRUE(opened.ok()) << opened.message();
  }
  writer.join();
}

TEST(RecordStore, AMissingFileIsNamedWithTheRowsItHas) {
  TempDir dir;
  TwoTiers tiers(dir);
  ASSERT_TSPS_OK(tiers.Create());
  ASSERT_TSPS_OK(tiers.Mutate({}, {{1, 1}, {2, 1}}, true));
  std::filesystem::remove(RecordFile::PathOf(tiers.disk(), 0));
  ASSERT_TSPS_OK(tiers.Open());
  const Status status = tiers.store().MakeWritable(1);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("was deleted, and 2 rows of the table"), std::string::npos)
      << status.message();
}

#ifdef TFSPS_FAULT_POINTS
// Kills the writer at a point of a mutation or of a compaction. Afterwards each row must be in
// exactly one tier, in the state of the last published mutation. Returns the number of violations.
size_t Violations(const std::string& point, long n, bool* killed) {
  TempDir dir;
  {
    TwoTiers created(dir);
    EXPECT_TRUE(created.Create().ok());
  }
  const std::string log = dir / "published";
  constexpr int64_t kKeys = 1200;
  // In step s the keys with residue s mod 4 leave with version s, and those with residue s + 2 come
  // back, except for every third, which stays on disk. So compaction finds files with few live
  // records.
  const auto leaving_at = [](uint32_t step) {
    std::vector<std::pair<int64_t, uint32_t>> leaving;
    for (int64_t key = step % 4; key < kKeys; key += 4) {
      if (key % 3 != 0 || step <= 4) leaving.push_back({key, step});
    }
    for (int64_t i = 0; i < 40; ++i) leaving.push_back({kKeys + step * 40 + i, step});
    return leaving;
  };
  const auto entering_at = [](uint32_t step) {
    std::vector<int64_t> entering;
    if (step < 3) return entering;
    for (int64_t key = (step + 2) % 4; key < kKeys; key += 4) {
      if (key % 3 != 0) entering.push_back(key);
    }
    return entering;
  };
  *killed = KilledAt(point, n, [&] {
    TwoTiers tiers(dir);
    if (!tiers.Open().ok() || !tiers.store().MakeWritable(0).ok()) _exit(1);
    for (uint32_t step = 1; step <= 150; ++step) {
      const Status status = tiers.Mutate(entering_at(step), leaving_at(step), true, [&] {
        FILE* file = fopen(log.c_str(), "w");
        fprintf(file, "%u", step);
        fclose(file);
      });
      if (!status.ok()) _exit(1);
      tiers.store().CompactAhead(32 * 1024);
      tiers.store().AwaitCompaction();
    }
  });
  uint32_t committed = 0;
  if (FILE* file = fopen(log.c_str(), "r")) {
    EXPECT_EQ(fscanf(file, "%u", &committed), 1);
    fclose(file);
  }
  std::map<int64_t, uint32_t> expected;
  for (uint32_t step = 1; step <= committed; ++step) {
    for (const int64_t key : entering_at(step)) expected.erase(key);
    for (const auto& [key, version] : leaving_at(step)) expected[key] = version;
  }
  TwoTiers tiers(dir);
  Status status = tiers.Open();
  if (status.ok()) status = tiers.store().MakeWritable(committed);
  EXPECT_TRUE(status.ok() || getenv("TFSPS_FAULT_OFF") != nullptr) << status.message();
  if (!status.ok()) return 1;
  size_t wrong = tiers.store().rows() != expected.size();
  wrong += tiers.Versions(Range(kKeys + 151 * 40)) != expected;
  return wrong;
}

const char* const kPoints[] = {"tier_file_written",
                               "tier_file_created",
                               "tier_write",
                               "tier_appended",
                               "record_moves_written",
                               "record_moves_declared",
                               "record_store_entered_one",
                               "record_store_placed_one",
                               "test_declared",
                               "test_published",
                               "record_store_dropped_one",
                               "record_store_compacted",
                               "record_index_copied"};

TEST(RecordStore, AKilledWriterLeavesEveryRowInOneTier) {
  for (const char* point : kPoints) {
    size_t kills = 0;
    for (const long n : {1, 2, 7, 20}) {
      bool killed = false;
      EXPECT_EQ(Violations(point, n, &killed), 0u) << point << " " << n;
      kills += killed;
    }
    EXPECT_GT(kills, 0u) << point;
  }
}

TEST(RecordStore, WithoutTheMovesAKillIsNoticed) {
  const pid_t child = fork();
  if (child == 0) {  // a new process, which reads the environment
    setenv("TFSPS_FAULT_OFF", "moves", 1);
    size_t violations = 0;
    for (const char* point : {"record_store_entered_one", "record_store_dropped_one"}) {
      bool killed = false;
      violations += Violations(point, 7, &killed);
    }
    _exit(violations > 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

}  // namespace
}  // namespace tsps
