// What a record log meets in weeks: more appends than there are places, thousands of files, large
// steps, a full disk, and errors of the disk.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
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

// 4,000 files, of which a process with 256 descriptors may have 16 open.
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
    constexpr int64_t kKeys = 4'000 * 56;
    for (int64_t first = 0; first < kKeys; first += kKeys / 10) {
      ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(From(first, kKeys / 10), 1), true));
    }
    EXPECT_LE(OpenDescriptors(), open_before + 18);
#ifdef TFSPS_FAULT_POINTS
    FailAt("tier_read", 1, EIO);  // opening reads no file
#endif
    ASSERT_TSPS_OK(reader.Open());
#ifdef TFSPS_FAULT_POINTS
    FailAt("", 0, 0);
#endif
    std::mt19937_64 random(1);
    for (int read = 0; read < 3; ++read) {
      std::set<int64_t> keys;
      while (keys.size() < 4'000) keys.insert(static_cast<int64_t>(random() % kKeys));
      EXPECT_EQ(reader.Versions({keys.begin(), keys.end()}).size(), 4'000u);
    }
    EXPECT_LE(OpenDescriptors(), open_before + 36);
#ifdef TFSPS_FAULT_POINTS
    // A row of each of 100 files, twice. The second time, each row takes one read: no header is
    // read again, although few of the files are still open.
    for (const int64_t row : {50, 51}) {
      std::vector<int64_t> keys;
      for (int64_t file = 0; file < 100; ++file) keys.push_back(40 * 56 * file + row);
      if (row == 51) FailAt("tier_read", 101, EIO);
      EXPECT_EQ(reader.Versions(keys).size(), 100u);
    }
    FailAt("", 0, 0);
#endif
    const uint32_t committed = tiers.store().next_number() - 1;
    ASSERT_TSPS_OK(tiers.Open());
    ASSERT_TSPS_OK(tiers.store().MakeWritable(committed));
    EXPECT_EQ(Scanned(tiers.store(), Range(10)).first.size(), static_cast<size_t>(kKeys));
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

// A log in which 2^34 slots are appended: files with far higher sequence numbers appear, as if so
// much had been appended and removed since. Random mutations, scans beside them, lookups and
// restarts, compared with a map.
class LongLife {
 public:
  explicit LongLife(const TempDir& dir) : tiers_(dir, 16 * 1024), reader_(dir, 16 * 1024) {}

  void Run() {
    ASSERT_TSPS_OK(tiers_.Create());
    const uint64_t slots = tiers_.Layout().records_per_file;
    sequence_ = tiers_.Layout().max_files();
    Jump();
    while (sequence_ * slots < uint64_t{1} << 34) {
      for (int step = 0; step < 6; ++step) {
        Mutate();
        if (testing::Test::HasFatalFailure()) return;
      }
      if (random_() % 2 == 0) FinishScan();
      if (scan_ == nullptr && random_() % 2 == 0) BeginScan();
      EXPECT_EQ(reader_.Versions(Range(kKeys)), on_disk_) << "sequence number " << sequence_;
      if (scan_ == nullptr) Jump();
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(scans_, 10);
  }

 private:
  static constexpr int64_t kKeys = 900;

  // Some rows come, others leave, a few with new content.
  void Mutate() {
    std::vector<int64_t> coming;
    Rows going;
    for (int64_t key = 0; key < kKeys; ++key) {
      // A third of the keys stay where they are for long.
      if (random_() % (key % 3 == 0 ? 400 : 8) != 0) continue;
      if (on_disk_.count(key) != 0) {
        coming.push_back(key);
      } else {
        going.push_back({key, static_cast<uint32_t>(random_() % 200)});
      }
    }
    const auto published = [&] {
      const std::vector<RecordMove>& moves = tiers_.store().entering();
      if (scan_ != nullptr) left_.insert(left_.end(), moves.begin(), moves.end());
    };
    ASSERT_TSPS_OK(tiers_.Mutate(coming, going, true, published, scan_ != nullptr));
    ++committed_;
    for (const int64_t key : coming) on_disk_.erase(key);
    for (const auto& [key, version] : going) on_disk_[key] = version;
    tiers_.store().CompactAhead(64 * 1024);
    if (random_() % 2 == 0) tiers_.store().AwaitCompaction();
  }

  void BeginScan() {
    left_.clear();
    auto scan = RecordScan::Begin(reader_.store(), committed_, [this] {
      scan_->Left(left_.data(), left_.size());
      return Status();
    });
    ASSERT_TSPS_OK(scan.status());
    ASSERT_NE(*scan, nullptr);
    scan_ = std::move(*scan);
    scanned_ = on_disk_;
  }

  void FinishScan() {
    if (scan_ == nullptr) return;
    const std::vector<int64_t> keys = Range(kKeys);
    std::map<int64_t, uint32_t> visited;
    std::vector<uint32_t> found(keys.size(), UINT32_MAX);
    ASSERT_TSPS_OK(scan_->Find(keys.data(), keys.size(), [&](size_t i, const char* payload) {
      found[i] = TwoTiers::VersionOf(keys[i], payload);
    }));
    for (bool more = true; more;) {
      const auto next = scan_->Next([&](int64_t key, const char* payload) {
        EXPECT_TRUE(visited.emplace(key, TwoTiers::VersionOf(key, payload)).second) << key;
      });
      ASSERT_TSPS_OK(next.status());
      more = *next;
    }
    EXPECT_EQ(visited, scanned_) << "sequence number " << sequence_;
    for (const int64_t key : keys) {
      const auto row = scanned_.find(key);
      EXPECT_EQ(found[static_cast<size_t>(key)], row == scanned_.end() ? UINT32_MAX : row->second)
          << key << ", sequence number " << sequence_;
    }
    scan_.reset();
    ++scans_;
  }

  // The next writer finds that the log is much older.
  void Jump() {
    sequence_ += random_() % (uint64_t{1} << 22);
    // Numbers of files that were removed a moment ago are the worst ones.
    auto number = static_cast<uint32_t>(random_() % 300);
    while (access(RecordFile::PathOf(tiers_.disk(), number).c_str(), F_OK) == 0) ++number;
    PutFile(tiers_, number, sequence_);
    sequence_ += 1'000;  // at most so many files are made until the next jump
    ASSERT_TSPS_OK(tiers_.Open());
    ASSERT_TSPS_OK(tiers_.store().MakeWritable(committed_));
    ASSERT_TSPS_OK(reader_.Open());
  }

  TwoTiers tiers_, reader_;
  std::mt19937_64 random_{7};
  std::map<int64_t, uint32_t> on_disk_, scanned_;
  std::unique_ptr<RecordScan> scan_;
  std::vector<RecordMove> left_;
  uint32_t committed_ = 0;
  uint64_t sequence_ = 0;
  int scans_ = 0;
};

TEST(RecordLife, SixteenBillionSlotsBesideAMap) {
  TempDir dir;
  LongLife(dir).Run();
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

// Each append of a life fails once, and the table goes on without a restart.
TEST(RecordLife, AFullDiskAtAnyAppendLosesNothing) {
  long fails = 0;
  bool failed = true;
  while (failed) {
    failed = false;
    ++fails;
    TempDir dir;
    TwoTiers tiers(dir, 16 * 1024);
    ASSERT_TSPS_OK(tiers.Create());
    std::mt19937 random(3);
    std::map<int64_t, uint32_t> on_disk;
    FailAt("tier_write", fails, ENOSPC);
    for (int step = 0; step < 24; ++step) {
      std::vector<int64_t> coming;
      Rows going;
      for (int64_t key = 0; key < 400; ++key) {
        if (random() % 4 != 0) continue;
        if (on_disk.count(key) != 0) {
          coming.push_back(key);
        } else {
          going.push_back({key, static_cast<uint32_t>(random() % 200)});
        }
      }
      const Status full = tiers.Mutate(coming, going, true);
      if (!full.ok()) {
        failed = true;
        EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.message();
        EXPECT_EQ(tiers.Versions(Range(400)), on_disk);
        EXPECT_FALSE(tiers.Mutate(coming, going, true).ok());
        FailAt("", 0, 0);
        ASSERT_TSPS_OK(tiers.Mutate(coming, going, true));
      }
      for (const int64_t key : coming) on_disk.erase(key);
      for (const auto& [key, version] : going) on_disk[key] = version;
      tiers.store().CompactAhead(16 * 1024);
      tiers.store().AwaitCompaction();
      if (!tiers.store().compaction_status().ok()) {
        failed = true;
        FailAt("", 0, 0);
      }
    }
    FailAt("", 0, 0);
    EXPECT_EQ(tiers.Versions(Range(400)), on_disk) << fails;
  }
  EXPECT_GT(fails - 1, 40) << "appends";
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

// Runs `body` in a child process that has mounted a disk of this size in `folder`. Returns false if
// this user may not mount.
template <typename Body>
bool OnSmallDisk(const std::string& folder, size_t bytes, const Body& body) {
  constexpr int kMayNot = 77;
  const pid_t child = fork();
  if (child == 0) {
    const std::string size = "size=" + std::to_string(bytes) + ",mode=0700";
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mkdir(folder.c_str(), 0700) != 0 ||
        mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      _exit(kMayNot);
    }
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kMayNot) return false;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return true;
}

// The disk is full of dead records, because compaction did not run. Every step moves rows out, so
// each fails, until compaction has used the reserve.
TEST(RecordLife, CompactionFreesAFullDiskAlthoughAllStepsFail) {
  TempDir dir;
  const bool may = OnSmallDisk(dir / "mount", 9 << 18, [&] {
    TwoTiers tiers(dir, 16 * 1024, "mount/disk");
    ASSERT_TSPS_OK(tiers.Create());
    ASSERT_TSPS_OK(tiers.Mutate({}, Versioned(Range(15'000), 1), true));  // 1.1 MB
    int64_t first = 0;
    const auto turn = [&] {  // 500 rows of all files come and leave again
      std::vector<int64_t> keys;
      for (int64_t key = first; key < 15'000; key += 30) keys.push_back(key);
      first = (first + 1) % 30;
      TSPS_RETURN_IF_ERROR(tiers.Mutate(keys, {}, true));
      return tiers.Mutate({}, Versioned(keys, 1), true);
    };
    for (int step = 0; access((dir / "mount/disk/.reserve").c_str(), F_OK) != 0; ++step) {
      ASSERT_LT(step, 40);
      ASSERT_TSPS_OK(turn());
      tiers.store().CompactAhead(1);
      tiers.store().AwaitCompaction();
    }
    Status full;
    for (int step = 0; full.ok() && step < 1000; ++step) full = turn();
    ASSERT_EQ(full.code(), Code::kResourceExhausted) << full.message();
    const uint64_t bytes = tiers.store().log_bytes();
    const Rows going = Versioned(From(20'000, 500), 1);
    const auto free_space = [&] {
      tiers.store().AwaitCompaction();
      tiers.store().PrepareCopies();
      tiers.store().PlaceCopies();
      tiers.store().RemoveEmptied();
    };
    int failures = 0;
    for (; failures < 200 && !tiers.Mutate({}, going, true).ok(); ++failures) free_space();
    EXPECT_GT(failures, 0);
    EXPECT_LT(failures, 200);
    // The step that succeeded may have used all that was freed, and compaction goes on.
    for (int round = 0; round < 10; ++round) {
      tiers.store().CompactAhead(64 * 1024);
      free_space();
    }
    EXPECT_LT(tiers.store().log_bytes(), bytes);
  });
  if (!may) GTEST_SKIP() << "this user may not mount a file system";
}

}  // namespace
}  // namespace tsps
