// Each scan sees one committed state, whatever writers do meanwhile.
#include "core/group/scan.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "tests/group_fixture.h"
#include "tests/mutation_sequence.h"

namespace tsps {
namespace {

// Reads all rows and slots of a scan, `block` rows at a time. Fails if the scan was ended.
Status ImageOfScan(Scan& scan, size_t block, Image* image) {
  *image = Image();
  image->step = scan.step();
  for (const int table : scan.tables()) {
    image->tables.resize(std::max(image->tables.size(), PlaceOf(table) + 1));
    auto& rows = image->tables[PlaceOf(table)];
    const PlaneList& list = scan.Planes(table);
    const size_t dim = list.embedding().row_bytes / sizeof(float);
    std::vector<int64_t> keys(block);
    std::vector<std::vector<float>> planes(list.trained(), std::vector<float>(block * dim));
    char* to[kMaxPlanes] = {};
    for (size_t p = 0; p < planes.size(); ++p) to[p] = reinterpret_cast<char*>(planes[p].data());
    while (true) {
      TSPS_ASSIGN_OR_RETURN(const size_t n, scan.Next(table, block, keys.data(), to));
      if (n == 0) break;
      for (size_t i = 0; i < n; ++i) {
        auto& values = rows[keys[i]];
        for (const auto& plane : planes) {
          const auto row = plane.begin() + static_cast<ptrdiff_t>(i * dim);
          values.insert(values.end(), row, row + static_cast<ptrdiff_t>(dim));
        }
      }
      std::this_thread::yield();
    }
    EXPECT_EQ(rows.size(), scan.StateOf(table).live);
  }
  return Status();
}

// Looks up the rows and slots of some keys in a scan.
Status FindInScan(Scan& scan, int table, const std::vector<int64_t>& keys,
                  std::map<int64_t, std::vector<float>>* rows_by_key) {
  SerialExecutor serial;
  std::vector<uint32_t> rows(keys.size());
  TSPS_RETURN_IF_ERROR(scan.Find(table, keys.data(), keys.size(), rows.data(), serial));
  const PlaneList& list = scan.Planes(table);
  const size_t dim = list.embedding().row_bytes / sizeof(float);
  std::vector<std::vector<float>> planes(list.trained(), std::vector<float>(keys.size() * dim));
  char* to[kMaxPlanes] = {};
  for (size_t p = 0; p < planes.size(); ++p) to[p] = reinterpret_cast<char*>(planes[p].data());
  TSPS_RETURN_IF_ERROR(scan.Copy(table, rows.data(), rows.size(), to, serial));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] == kAbsentRow) continue;
    auto& values = (*rows_by_key)[keys[i]];
    values.clear();  // keys repeat
    for (const auto& plane : planes) {
      const auto row = plane.begin() + static_cast<ptrdiff_t>(i * dim);
      values.insert(values.end(), row, row + static_cast<ptrdiff_t>(dim));
    }
  }
  return Status();
}

class ScanTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { expected_ = StatesOfTheSequence(&first_); }

  std::shared_ptr<Group> MakeGroup() {
    dir_.Clear();
    auto group = Group::Create(Path(), kUuid);
    EXPECT_TRUE(group.ok()) << group.status().message();
    auto writer = (*group)->OpenWriter();
    EXPECT_TRUE(writer.ok() && SetUpGroup(**writer).ok());
    return *group;
  }
  std::string Path() const { return dir_ / "g"; }

  static const Image& Expected(const Scan& scan) {
    return expected_[scan.step() + scan.version() - first_];
  }
  // The number of files of scans in the group's folder, except for those of their places.
  size_t FilesOfScans() const {
    size_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator(Path())) {
      const std::string name = entry.path().filename();
      n += name.rfind(".scan-", 0) == 0 && name.find('.', 1) != std::string::npos &&
           name.find(".images") == std::string::npos;
    }
    return n;
  }
  // Scans while a writer makes the sequence, in this process or in a child. Returns the number of
  // scans that did not see one state.
  int ScanBesideAWriter(bool in_child);

  TempDir dir_;
  static std::vector<Image> expected_;
  static uint64_t first_;
};

std::vector<Image> ScanTest::expected_;
uint64_t ScanTest::first_ = 0;

int ScanTest::ScanBesideAWriter(bool in_child) {
  int torn = 0;
  int scans = 0;
  int overlapping = 0;  // scans during which something was committed
  std::mt19937_64 random(17);
  // More rounds on a busy machine, where scans and mutations take turns.
  for (int round = 0; round < 4 || (overlapping < 8 && round < 100); ++round) {
    std::shared_ptr<Group> group = MakeGroup();
    std::atomic<bool> done{false};
    std::atomic<bool> open{false};
    const auto work = [this, &done, &open](Group& writing) {
      auto writer = writing.OpenWriter();
      EXPECT_TRUE(writer.ok()) << writer.status().message();
      open = true;
      for (int i = 0; i < kMutations; ++i) {
        const Status status = Mutate(writing, **writer, i);
        EXPECT_TRUE(status.ok()) << status.message();
        usleep(1000);
      }
      EXPECT_TRUE((*writer)->Verify().ok());
      done = true;
    };
    pid_t child = 0;
    std::thread thread;
    if (in_child) {
      child = fork();
      if (child == 0) {
        auto own_group = Group::Open(Path());
        work(**own_group);
        _exit(HasFailure() ? 1 : 0);
      }
    } else {
      thread = std::thread([&] { work(*group); });
      while (!open) std::this_thread::yield();  // no scan reads while the writer is opened
    }
    while (!done) {
      int status = 0;
      if (in_child && waitpid(child, &status, WNOHANG) == child) {
        EXPECT_EQ(status, 0);
        done = true;
      }
      auto scan = Scan::Begin(*group, {});
      EXPECT_TRUE(scan.ok()) << scan.status().message();
      if (!scan.ok()) break;
      const Image& expected = Expected(**scan);
      if (scans++ % 2 == 0) {
        Image image;
        const Status read = ImageOfScan(**scan, 64, &image);
        // The sequence binds a table to another optimizer, once.
        if (!read.ok() && read.message().find("another optimizer") != std::string::npos) continue;
        EXPECT_TRUE(read.ok()) << read.message();
        torn += !(image == expected);
      } else {
        std::vector<int64_t> keys;
        for (int i = 0; i < 6000; ++i)
          keys.push_back(static_cast<int64_t>(random() % 60000) * 7919);
        std::map<int64_t, std::vector<float>> rows_by_key;
        const Status read = FindInScan(**scan, 1, keys, &rows_by_key);
        if (!read.ok() && read.message().find("another optimizer") != std::string::npos) continue;
        EXPECT_TRUE(read.ok()) << read.message();
        bool same = true;
        const auto& rows = expected.tables[1];
        for (const int64_t key : keys) {
          const auto expected_row = rows.find(key);
          const auto read_row = rows_by_key.find(key);
          same &= (expected_row == rows.end()) == (read_row == rows_by_key.end());
          same &= expected_row == rows.end() || read_row == rows_by_key.end() ||
                  expected_row->second == read_row->second;
        }
        torn += !same;
      }
      overlapping += (*scan)->step() + (*scan)->version() != MutationsDone(*group);
    }
    if (thread.joinable()) thread.join();
    EXPECT_EQ(FilesOfScans(), 0u);
  }
  EXPECT_GE(overlapping, 8) << "of " << scans << " scans";
  return torn;
}

TEST_F(ScanTest, BesideAWriterOfThisProcessEveryScanIsOfOneState) {
  EXPECT_EQ(ScanBesideAWriter(false), 0);
}

TEST_F(ScanTest, BesideAWriterOfAnotherProcessEveryScanIsOfOneState) {
  EXPECT_EQ(ScanBesideAWriter(true), 0);
}

#ifdef TFSPS_FAULT_POINTS

TEST_F(ScanTest, WithoutBeforeImagesScansAreTorn) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TFSPS_FAULT_OFF", "scan_images", 1);
    testing::internal::CaptureStdout();  // hides the failures, which are expected
    _exit(ScanBesideAWriter(false) > 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// The scan continues although the writer is killed and the next writer recovers the group.
TEST_F(ScanTest, AScanOutlivesTheWriterAndItsRecovery) {
  for (const long n : {50, 500, 2000, 5000}) {
    std::shared_ptr<Group> group = MakeGroup();
    const auto work = [&](int end) {
      auto own_group = Group::Open(Path());
      auto writer = (*own_group)->OpenWriter();
      if (!writer.ok()) _exit(11);
      for (auto i = static_cast<int>(MutationsDone(**own_group) - first_); i < end; ++i) {
        if (!Mutate(**own_group, **writer, i).ok()) _exit(12);
      }
    };
    const auto in_child = [&](const std::string& kill_at, int end) {
      const pid_t child = fork();
      if (child == 0) {
        setenv("TFSPS_FAULT_KILL", kill_at.c_str(), 1);
        work(end);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      return status;
    };
    ASSERT_EQ(in_child("none:1", 4), 0);
    auto scan = Scan::Begin(*group, {});
    ASSERT_TRUE(scan.ok()) << scan.status().message();
    EXPECT_TRUE(WIFSIGNALED(in_child("apply.row:" + std::to_string(n), kMutations / 2)));
    auto later_scan = Scan::Begin(*group, {});  // undoes the dead writer's mutation in its view
    ASSERT_TRUE(later_scan.ok()) << later_scan.status().message();
    Image image;
    ASSERT_TSPS_OK(ImageOfScan(**later_scan, 256, &image));
    EXPECT_TRUE(image == Expected(**later_scan)) << n;
    // The next writer is killed in its recovery. The one after it makes more mutations.
    in_child("recovery.row:" + std::to_string(n / 10), 0);
    ASSERT_EQ(in_child("none:1", kMutations / 2), 0);
    ASSERT_TSPS_OK(ImageOfScan(**scan, 256, &image));
    EXPECT_TRUE(image == Expected(**scan)) << n;
  }
}

TEST_F(ScanTest, AKilledScanLeavesNothingToTheNextOne) {
  std::shared_ptr<Group> group = MakeGroup();
  for (const char* point : {"scan.made:1", "scan.announced:1"}) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("TFSPS_FAULT_KILL", point, 1);
      auto own_group = Group::Open(Path());
      _exit(Scan::Begin(**own_group, {}).ok() ? 1 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(FilesOfScans(), 1u);
    auto writer = group->OpenWriter();
    ASSERT_TRUE(writer.ok());
    if (std::string(point) == "scan.announced:1") {
      ASSERT_TSPS_OK(Mutate(*group, **writer, 0));  // the writer notices that the scan is dead
      EXPECT_EQ(FilesOfScans(), 0u);
    }
    ASSERT_TRUE(Scan::Begin(*group, {}).ok());
    EXPECT_EQ(FilesOfScans(), 0u);
  }
}

#endif  // TFSPS_FAULT_POINTS

TEST_F(ScanTest, AScanThatNeedsMoreThanItsLimitEndsAndTheWriterGoesOn) {
  std::shared_ptr<Group> group = MakeGroup();
  auto writer = group->OpenWriter();
  ASSERT_TRUE(writer.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TSPS_OK(Mutate(*group, **writer, i));
  Scan::Options options;
  options.limit = 4096;
  auto scan = Scan::Begin(*group, {}, options);
  ASSERT_TRUE(scan.ok()) << scan.status().message();
  ASSERT_TSPS_OK((*scan)->Check());
  for (int i = 3; i < 6; ++i) ASSERT_TSPS_OK(Mutate(*group, **writer, i));
  Image image;
  const Status ended = ImageOfScan(**scan, 256, &image);
  EXPECT_EQ(ended.code(), Code::kUnavailable);
  EXPECT_NE(ended.message().find("rows of more than 4096 bytes"), std::string::npos)
      << ended.message();
  EXPECT_TRUE(ReadImage(*group) == expected_[6]);
}

TEST_F(ScanTest, AStepThatIsPreparedDoesNotHoldAScanUp) {
  std::shared_ptr<Group> group = MakeGroup();
  auto writer = group->OpenWriter();
  ASSERT_TRUE(writer.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TSPS_OK(Mutate(*group, **writer, i));
  std::vector<int64_t> keys;
  for (const auto& [key, row] : expected_[3].tables[0]) keys.push_back(key);
  const std::vector<float> gradients(keys.size() * 4, 1.0f);
  const float hyper[] = {0.5f, 1e-7f};
  SerialExecutor serial;
  const TableUpdate update{0, keys.data(), gradients.data(), keys.size(), hyper, 2};
  RowChanges changes;
  changes.step = group->step() + 1;
  changes.updates = {update};
  ASSERT_TSPS_OK((*writer)->Prepare(changes, serial));
  auto scan = Scan::Begin(*group, {});
  ASSERT_TRUE(scan.ok()) << scan.status().message();
  (*writer)->Publish();
  Image image;
  ASSERT_TSPS_OK(ImageOfScan(**scan, 100, &image));
  EXPECT_TRUE(image == expected_[3]);
  EXPECT_FALSE(ReadImage(*group) == expected_[3]);
}

TEST_F(ScanTest, MoreScansThanPlacesWaitAndThenSaySo) {
  std::shared_ptr<Group> group = MakeGroup();
  std::vector<std::unique_ptr<Scan>> scans;
  for (size_t i = 0; i < kMaxScans; ++i) {
    auto scan = Scan::Begin(*group, {});
    ASSERT_TRUE(scan.ok()) << scan.status().message();
    scans.push_back(std::move(*scan));
  }
  Scan::Options options;
  options.timeout_s = 0.05;
  const auto refused = Scan::Begin(*group, {}, options);
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  scans.pop_back();
  EXPECT_TRUE(Scan::Begin(*group, {}, options).ok());
}

TEST_F(ScanTest, ATableThatIsRemovedCanBeReadOn) {
  std::shared_ptr<Group> group = MakeGroup();
  auto writer = group->OpenWriter();
  ASSERT_TRUE(writer.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TSPS_OK(Mutate(*group, **writer, i));
  auto scan = Scan::Begin(*group, {0});
  ASSERT_TRUE(scan.ok());
  ASSERT_TSPS_OK((*writer)->RemoveTable(0));
  ASSERT_TRUE((*writer)->CreateTable(MakeConfig("other", 4)).ok());
  Image image;
  ASSERT_TSPS_OK(ImageOfScan(**scan, 100, &image));
  EXPECT_TRUE(image.tables[0] == expected_[3].tables[0]);
  EXPECT_EQ(Scan::Begin(*group, {0}).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tsps
