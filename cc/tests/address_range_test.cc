#include "core/os/address_range.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>

#include "core/group/undo_log.h"
#include "core/os/mapped_file.h"
#include "core/table/table_files.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kTiB = 1ull << 40;
constexpr AddressSpace kFresh = {128 * kTiB, 50 * kGiB};

TEST(AddressRange, TheFirstFilesMayFillTheFileSystem) {
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, 4 * kTiB, kFresh), 4 * kTiB);
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, 300 * kTiB, kFresh), 8 * kTiB);
}

TEST(AddressRange, IsWholePagesAndNoMoreThanTheFileCanHave) {
  EXPECT_EQ(AddressRange(1000, 0, kTiB, kFresh), 4096u);
  EXPECT_EQ(AddressRange(4097, 4096, kTiB, kFresh), 8192u);
  EXPECT_EQ(AddressRange(4096, 10000, kTiB, kFresh), 12288u)
      << "an existing file is mapped as a whole";
}

TEST(AddressRange, ASmallTmpfsMayBecomeLarger) {
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, 64 * kMiB, kFresh), 16 * kGiB);
}

TEST(AddressRange, WithLittleLeftAFileStillMayDouble) {
  const AddressSpace scarce = {128 * kTiB, 127 * kTiB};
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, 4 * kTiB, scarce), 256 * kMiB);
  EXPECT_EQ(AddressRange(UINT64_MAX, 100 * kGiB, 4 * kTiB, scarce), 200 * kGiB);
  EXPECT_EQ(AddressRange(UINT64_MAX, 3 * kTiB, 4 * kTiB, scarce), 4 * kTiB);
}

TEST(AddressRange, MoreTakenThanThereIsLeavesTheSmallestShare) {
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, kTiB, {kGiB, 5 * kGiB}), 64 * kMiB);
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, kTiB, {0, 5 * kGiB}), 64 * kMiB);
}

TEST(AddressRange, ALimitOfTheProcessIsShared) {
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, kTiB, {64 * kGiB, kGiB}), 4 * kGiB);
  EXPECT_EQ(AddressRange(UINT64_MAX, 4096, kTiB, {64 * kGiB, 9 * kGiB}), kGiB);
}

// The smallest range that the rows of a table get. The tables have no limit and use Adam; their
// files are rows, two slots, segments, directory and free list. Each table is mapped twice, as in a
// process that trains with the op library and reads with `Table.open`.
uint64_t SmallestRangeOfRows(int tables, uint64_t capacity) {
  AddressSpace space = kFresh;
  uint64_t smallest = UINT64_MAX;
  for (int t = 0; t < 2 * tables; ++t) {
    for (const uint64_t bound : {2 * kTiB, 2 * kTiB, 2 * kTiB, kTiB, kGiB / 2, 16 * kGiB}) {
      const uint64_t range = AddressRange(bound, 4096, capacity, space);
      space.taken += range;
      if (bound == 2 * kTiB) smallest = std::min(smallest, range);
    }
  }
  EXPECT_LE(space.taken, space.total) << tables << " tables on " << capacity << " bytes";
  return smallest;
}

TEST(AddressRange, HundredsOfTablesFindRoomOnAnyFileSystem) {
  for (const uint64_t capacity : {24 * kGiB, 252 * kGiB, kTiB, 4 * kTiB, 100 * kTiB}) {
    EXPECT_GE(SmallestRangeOfRows(26, capacity), std::min(capacity, 64 * kGiB)) << capacity;
    EXPECT_GE(SmallestRangeOfRows(200, capacity), 8 * kGiB) << capacity;
    EXPECT_GE(SmallestRangeOfRows(1000, capacity), kGiB) << capacity;
  }
}

// ThreadSanitizer itself maps nearly all of the address space, so that mappings can be neither
// counted nor limited.
#ifdef __SANITIZE_THREAD__
constexpr bool kOwnAddressSpace = false;
#else
constexpr bool kOwnAddressSpace = true;
#endif

TEST(AddressRange, OfTheProcessCountsEveryMapping) {
  if (!kOwnAddressSpace) GTEST_SKIP();
  TempDir dir;
  const AddressSpace before = AddressSpaceOfProcess();
  EXPECT_GT(before.taken, kMiB);
  auto file = MappedFile::Create(dir / "f", 4096, 8 * kGiB);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_GE(AddressSpaceOfProcess().taken, before.taken + 8 * kGiB);
}

TEST(AddressRange, AMappingShowsNoMoreOfAFileThanItReaches) {
  TempDir dir;
  auto writer = MappedFile::Create(dir / "f", 4096, kMiB);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  auto reader = MappedFile::Open(dir / "f", 4096, 65536);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  ASSERT_TSPS_OK((*writer)->Reserve(kMiB));
  EXPECT_EQ((*writer)->Reserve(kMiB + 1).code(), Code::kResourceExhausted);
  EXPECT_EQ((*writer)->size(), kMiB);
  EXPECT_EQ((*reader)->RefreshSize(), 65536u);
  ASSERT_TSPS_OK((*reader)->CheckRange(65536));
  EXPECT_EQ((*reader)->CheckRange(65537).code(), Code::kResourceExhausted);
  ASSERT_TSPS_OK((*reader)->MakeWritable());
  EXPECT_EQ((*reader)->size(), 65536u);
}

// While such an object exists, new mappings get 64 to 70 MiB if they can use them.
class ScarceAddressSpace {
 public:
  ScarceAddressSpace() {
    getrlimit(RLIMIT_AS, &before_);
    rlimit scarce = before_;
    scarce.rlim_cur = AddressSpaceOfProcess().taken + kGiB;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &scarce), 0);
  }
  ~ScarceAddressSpace() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

class OutgrownRange : public GroupTest {
 protected:
  static constexpr int64_t kDim = 4096;  // 16 KiB a row

  void SetUp() override {
    if (!kOwnAddressSpace) GTEST_SKIP();
    // Otherwise the reserver's thread may take 128 MiB of addresses for its heap at any time.
    mallopt(M_ARENA_MAX, 1);
    GroupTest::SetUp();
  }
  void ReopenInScarceAddressSpace() {
    writer_.reset();
    group_.reset();  // before the limit is set: it gives back address space
    ScarceAddressSpace scarce;
    Reopen();
  }
  // Adds the keys first .. first + 1023, 16 MiB of rows.
  Status Add(int table, int64_t first) {
    std::vector<int64_t> keys(1024);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = first + static_cast<int64_t>(i);
    const std::vector<float> rows(keys.size() * kDim, 7.0f);
    return writer_->Assign(table, keys.data(), rows.data(), nullptr, keys.size(), executor_);
  }
  static Status FindOne(Group& group, int table) {
    return group.Read([&](const ReadView& view) {
      const int64_t key = 5;
      const char* row = nullptr;
      view.Find(table, &key, 1, &row);
      EXPECT_TRUE(row == nullptr || *reinterpret_cast<const float*>(row) == 7.0f);
      return Status();
    });
  }
  void ExpectOutgrown(const Status& status, const std::string& file) {
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_EQ(status.message().find(dir_ / "g" + file + " needs "), 0u) << status.message();
    EXPECT_NE(status.message().find("open them again"), std::string::npos) << status.message();
  }
};

TEST_F(OutgrownRange, IsAnErrorOfTheWriterAndTheTableStaysWhole) {
  AddTable("wide", kDim);
  ASSERT_NO_FATAL_FAILURE(ReopenInScarceAddressSpace());
  int64_t rows = 0;
  Status status;
  for (; status.ok() && rows < 8192; rows += 1024) status = Add(0, rows);
  rows -= 1024;
  ExpectOutgrown(status, "/wide/plane.embedding.1");
  EXPECT_EQ(rows, 4096);
  ASSERT_TSPS_OK(FindOne(*group_, 0));
  ASSERT_TSPS_OK(writer_->Verify());
  ASSERT_TSPS_OK(Add(0, 0));

  const Image before = ReadImage(*group_);
  ASSERT_NO_FATAL_FAILURE(ReopenInScarceAddressSpace());
  EXPECT_EQ(ReadImage(*group_), before);
  for (; rows < 8192; rows += 1024) ASSERT_TSPS_OK(Add(0, rows));
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(OutgrownRange, IsAnErrorOfTheReaderForThatTableOnly) {
  AddTable("wide", kDim);
  AddTable("other", 4);
  Result<std::shared_ptr<Group>> reader = Status(Code::kInternal, "");
  {
    ScarceAddressSpace scarce;
    reader = Group::Open(dir_ / "g");
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    for (const int table : {0, 1}) ASSERT_TSPS_OK(FindOne(**reader, table));  // maps the table
  }
  for (int64_t rows = 0; rows < 4096; rows += 1024) ASSERT_TSPS_OK(Add(0, rows));
  ASSERT_TSPS_OK(FindOne(**reader, 0));
  for (int64_t rows = 4096; rows < 6144; rows += 1024) ASSERT_TSPS_OK(Add(0, rows));
  ExpectOutgrown(FindOne(**reader, 0), "/wide/plane.embedding.1");
  ExpectOutgrown((*reader)->Read([](const ReadView& view) {
    VisitRows(view, 0, [](int64_t, uint32_t) { ADD_FAILURE() << "a part of a table is shown"; });
    return Status();
  }),
                 "/wide/plane.embedding.1");
  ASSERT_TSPS_OK(FindOne(**reader, 1));

  writer_.reset();
  ExpectOutgrown((*reader)->OpenWriter().status(), "/wide/plane.embedding.1");
  {
    ScarceAddressSpace scarce;
    reader = Group::Open(dir_ / "g");
  }
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(ReadImage(**reader), ReadImage(*group_));
  EXPECT_TRUE((*reader)->OpenWriter().ok());
}

TEST_F(OutgrownRange, OfTheUndoLogIsNotTakenForDamage) {
  auto written_log = UndoLog::Create(dir_ / "log");
  ASSERT_TRUE(written_log.ok()) << written_log.status().message();
  Result<std::unique_ptr<UndoLog>> read_log = Status(Code::kInternal, "");
  {
    ScarceAddressSpace scarce;
    read_log = UndoLog::Open(dir_ / "log");
  }
  ASSERT_TRUE(read_log.ok()) << read_log.status().message();
  const size_t bytes = UndoInsertsBytes(10 << 20);
  ASSERT_TSPS_OK((*written_log)->file().Reserve(UndoLog::SizeFor(bytes)));
  (*written_log)->Start();
  (*written_log)->Append(UndoKind::kInserts, 0, 10 << 20, bytes);
  (*written_log)->Seal(1);
  const Status status = (*read_log)->ForEach(1, [](const UndoRecordHeader&, const char*) {
    ADD_FAILURE() << "a record is read";
    return Status();
  });
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
}

TEST(TableFilesRange, OfABoundedTableIsWhatItCanHold) {
  TempDir dir;
  TableConfig config = MakeConfig("t", 4);
  config.max_rows = 100000;
  config.key_limit = 1000;
  auto files = TableFiles::Create(dir / "t", config, 7);
  ASSERT_TRUE(files.ok()) << files.status().message();
  TableState state = {};
  state.planes = TableFiles::kFirstGeneration;
  const PlaneList* const planes = (*files)->Planes(state);
  ASSERT_NE(planes, nullptr);
  EXPECT_EQ(planes->embedding().file->range(), 16384u);  // 1000 rows of 16 bytes, in whole pages
  EXPECT_EQ(planes->key().file->range(), 8192u);
  EXPECT_EQ((*files)->free_rows().range(), 4096u);
  EXPECT_EQ((*files)->segments().range(), 64 * kMiB);
  EXPECT_LE((*files)->directory().range(), 512 * kMiB);
}

}  // namespace
}  // namespace tsps
