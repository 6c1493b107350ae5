// Scans and erases of damaged tables, and scans that cannot announce themselves. They must fail at
// once, with an error that names the cause.
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/group/layout.h"
#include "core/group/scan.h"
#include "core/table/index.h"
#include "core/table/layout.h"
#include "tests/file_values.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

constexpr int64_t kKeys = 5000;

class DamagedScanTest : public GroupTest {
 protected:
  void SetUp() override {
    GroupTest::SetUp();
    AddTable("t", 4, OptimizerKind::kAdagrad);
    std::vector<int64_t> keys(kKeys);
    for (int64_t i = 0; i < kKeys; ++i) keys[static_cast<size_t>(i)] = i;
    ASSERT_TSPS_OK(Step(0, keys, 1.0f));
  }
  // The row number of a key. Rows were added in the order of their keys.
  static uint32_t RowOf(int64_t key) { return static_cast<uint32_t>(key); }
  Status CountRows(uint64_t* rows) {
    *rows = 0;
    TSPS_ASSIGN_OR_RETURN(const auto scan, Scan::Begin(*group_, {0}));
    std::vector<int64_t> keys(512);
    char* planes[kMaxPlanes] = {};
    while (true) {
      TSPS_ASSIGN_OR_RETURN(const size_t n, scan->Next(0, keys.size(), keys.data(), planes));
      if (n == 0) return Status();
      *rows += n;
    }
  }
};

TEST_F(DamagedScanTest, ATableThatIsLongerThanItsFilesIsAnErrorAtOnce) {
  auto reader = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ReadImage(**reader);  // maps the table
  const std::string path = dir_ / "g/group";
  const auto sequence = ValueAt<uint64_t>(path, kLiveOffset);
  const size_t record = kRecordOffset + (sequence / 2 & 1) * kRecordBytes;
  const size_t at = record + offsetof(CommitRecord, tables) + offsetof(TableState, rows);
  SetValueAt(path, at, uint64_t{10'000'000});
  const uint64_t began = NowNs();
  const auto scan = Scan::Begin(**reader, {0});
  ASSERT_FALSE(scan.ok());
  EXPECT_EQ(scan.status().code(), Code::kDataLoss) << scan.status().message();
  EXPECT_LT(NowNs() - began, 5'000'000'000u);  // not after the scan's timeout of 30 s
}

TEST_F(DamagedScanTest, ARowThatIsMarkedFreeAndIsNotIsMissed) {
  uint64_t rows = 0;
  ASSERT_TSPS_OK(CountRows(&rows));
  EXPECT_EQ(rows, uint64_t{kKeys});
  SetValueAt<uint32_t>(dir_ / "g/t/plane.changed.1", RowOf(77) * sizeof(uint32_t), kFreeRow);
  const Status damaged = CountRows(&rows);
  EXPECT_EQ(damaged.code(), Code::kDataLoss);
  EXPECT_NE(damaged.message().find("4999 rows with a key, 5000 counted"), std::string::npos)
      << damaged.message();
}

TEST_F(DamagedScanTest, ARowOfAnotherKeyIsNotFreed) {
  SetValueAt<int64_t>(dir_ / "g/t/plane.key.1", RowOf(12) * sizeof(int64_t), int64_t{13});
  const int64_t keys[] = {11, 12};
  const auto erased = writer_->Erase(0, keys, 2);
  ASSERT_FALSE(erased.ok());
  EXPECT_EQ(erased.status().code(), Code::kDataLoss);
  EXPECT_NE(erased.status().message().find("leads key 12 to row 12, which is that of key 13"),
            std::string::npos)
      << erased.status().message();
  SetValueAt<int64_t>(dir_ / "g/t/plane.key.1", RowOf(12) * sizeof(int64_t), int64_t{12});
  ASSERT_TRUE(writer_->Erase(0, keys, 2).ok());
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(DamagedScanTest, PlanesThatWereNotAskedForAreRefused) {
  SerialExecutor serial;
  Scan::Options options = Scan::RowsAlone();
  const auto scan = Scan::Begin(*group_, {0}, options);
  ASSERT_TRUE(scan.ok()) << scan.status().message();
  float values[4];
  const uint32_t row = 0;
  char* planes[kMaxPlanes] = {};
  planes[0] = reinterpret_cast<char*>(values);
  ASSERT_TSPS_OK((*scan)->Copy(0, &row, 1, planes, serial));
  planes[1] = planes[0];
  planes[0] = nullptr;
  const Status refused = (*scan)->Copy(0, &row, 1, planes, serial);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("'accumulator'"), std::string::npos) << refused.message();
}

TEST_F(DamagedScanTest, AScanThatCannotAnnounceItselfSaysWhyWhenTheGroupChanges) {
  // The lock of every place is a directory, so that no lock can be opened.
  for (size_t place = 0; place < kMaxScans; ++place) {
    const std::string lock = dir_ / ("g/.scan-" + std::to_string(place));
    std::filesystem::remove(lock);
    std::filesystem::create_directory(lock);
  }
  const auto scan = Scan::Begin(*group_, {0});
  ASSERT_TRUE(scan.ok()) << scan.status().message();
  std::vector<int64_t> keys(64);
  char* planes[kMaxPlanes] = {};
  const auto read = (*scan)->Next(0, keys.size(), keys.data(), planes);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, 64u);
  ASSERT_TSPS_OK(Step(0, {1, 2}, 1.0f));
  const auto changed = (*scan)->Next(0, keys.size(), keys.data(), planes);
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.status().code(), Code::kUnavailable);
  EXPECT_NE(changed.status().message().find(".scan-0"), std::string::npos)
      << changed.status().message();
}

}  // namespace
}  // namespace tsps
