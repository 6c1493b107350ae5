// Impossible numbers in a group's files. They must be refused with an error, before any access out
// of bounds and before anything is written. tests/mutate damages files at random.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/crc32c.h"
#include "core/group/layout.h"
#include "core/group/undo_log.h"
#include "core/table/layout.h"
#include "tests/file_values.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

class DamageTest : public GroupTest {
 protected:
  // A table with slots, free rows and an index of several segments.
  void SetUp() override {
    GroupTest::SetUp();
    AddTable("t", 4, OptimizerKind::kAdagrad);
    ASSERT_TSPS_OK(Step(0, Keys(0, 9000), 1.0f));
    ASSERT_TRUE(writer_->Erase(0, Keys(0, 20).data(), 20).ok());
  }
  static std::vector<int64_t> Keys(int64_t first, int64_t n) {
    std::vector<int64_t> keys;
    for (int64_t i = first; i < first + n; ++i) keys.push_back(i * 7919);
    return keys;
  }
  void Close() {
    writer_.reset();
    group_.reset();
  }
  // Closes the group, and leaves it as if the writer had been killed before it published its last
  // mutation.
  void CloseUnpublished() {
    Close();
    Set<uint64_t>("group", kLiveOffset, Get<uint64_t>("group", kLiveOffset) - 1);
  }
  template <typename T>
  T Get(const std::string& file, size_t offset) const {
    return ValueAt<T>(dir_ / ("g/" + file), offset);
  }
  template <typename T>
  void Set(const std::string& file, size_t offset, T value) const {
    SetValueAt(dir_ / ("g/" + file), offset, value);
  }
  // The offset of the table's state in the committed record.
  size_t TableOffset() const {
    const uint64_t epoch = Get<uint64_t>("group", kLiveOffset) / 2;
    return kRecordOffset + (epoch & 1) * kRecordBytes + offsetof(CommitRecord, tables);
  }
  // The offset of the first entry with a key in the file of segments.
  size_t FirstKey() const {
    size_t at = offsetof(Segment, entries);
    while (Get<uint32_t>("t/segments", at + 8) == 0 ||
           Get<uint32_t>("t/segments", at + 8) == kTombstone) {
      at += sizeof(Entry);
    }
    return at;
  }
  std::string Bytes() const {
    std::ostringstream bytes;
    for (const char* file :
         {"t/directory", "t/segments", "t/plane.embedding.1", "t/plane.accumulator.2", "t/free"}) {
      bytes << std::ifstream(dir_ / (std::string("g/") + file), std::ios::binary).rdbuf();
    }
    return bytes.str();
  }
  // Sets a value that the next writer and, if `reader`, readers must refuse. Then restores the old
  // value.
  template <typename T>
  void ExpectRefused(const std::string& file, size_t offset, T value, bool reader = true) const {
    const T old = Get<T>(file, offset);
    Set(file, offset, value);
    const std::string where = file + " at " + std::to_string(offset);
    const std::string before = Bytes();
    auto group = Group::Open(dir_ / "g");
    if (reader || !group.ok()) {
      Status status = group.status();
      if (group.ok()) {
        status = (*group)->Verify(0);
      }
      EXPECT_EQ(status.code(), Code::kDataLoss) << where << ": " << status.message();
    }
    if (group.ok()) {
      const Status status = (*group)->OpenWriter().status();
      EXPECT_EQ(status.code(), Code::kDataLoss) << where << ": " << status.message();
    }
    EXPECT_EQ(Bytes(), before) << where;
    Set(file, offset, old);
  }
  void ExpectSound() {
    Reopen();
    ASSERT_TSPS_OK(writer_->Verify());
  }
};

constexpr size_t kFirstRecord = kPageBytes;
constexpr size_t kPayload = kFirstRecord + sizeof(UndoRecordHeader);

TEST_F(DamageTest, AnUndoLogOfAStepThatCannotBeIsRefusedAndNothingIsUndone) {
  const Image before = ReadImage(*group_);
  ASSERT_TSPS_OK(Step(0, Keys(100, 500), 1.0f));
  CloseUnpublished();
  for (const uint32_t row : {0xF0000000u, 9000u}) ExpectRefused("undo", kPayload, row);
  ExpectRefused("undo", kFirstRecord + offsetof(UndoRecordHeader, table), uint32_t{1});
  ExpectRefused("undo", kFirstRecord + offsetof(UndoRecordHeader, planes), uint32_t{1});
  ExpectRefused("undo", kFirstRecord + offsetof(UndoRecordHeader, row_bytes), uint32_t{28});
  ExpectRefused("undo", kFirstRecord + offsetof(UndoRecordHeader, kind), uint32_t{9});
  ExpectSound();
  EXPECT_EQ(ReadImage(*group_), before);
}

TEST_F(DamageTest, AnUndoLogOfAnEraseThatCannotBeIsRefusedAndNothingIsUndone) {
  const Image before = ReadImage(*group_);
  ASSERT_TRUE(writer_->Erase(0, Keys(100, 50).data(), 50).ok());
  CloseUnpublished();
  for (const auto& [field, value] : {std::pair{offsetof(ErasedEntry, segment), 1000u},
                                     {offsetof(ErasedEntry, entry), kSegmentEntries},
                                     {offsetof(ErasedEntry, row_plus_one), 9001u},
                                     {offsetof(ErasedEntry, row_plus_one), 0u}}) {
    ExpectRefused("undo", kPayload + field, value);
  }
  ExpectSound();
  EXPECT_EQ(ReadImage(*group_), before);
}

TEST_F(DamageTest, AnUndoLogOfASplitThatCannotBeIsRefusedAndNothingIsUndone) {
  const Image before = ReadImage(*group_);
  const uint64_t splits = group_->counters().growth_splits.load();
  // The step splits segments and is then refused, so that the split is the last mutation.
  std::filesystem::create_hard_link(dir_ / "g/t/plane.embedding.1", dir_ / "rows");
  std::filesystem::remove(dir_ / "g/t/plane.embedding.1");
  EXPECT_EQ(Step(0, Keys(10000, 200000), 1.0f).code(), Code::kDataLoss);
  ASSERT_GT(group_->counters().growth_splits.load(), splits);
  std::filesystem::rename(dir_ / "rows", dir_ / "g/t/plane.embedding.1");
  CloseUnpublished();
  ASSERT_EQ(Get<UndoKind>("undo", kFirstRecord), UndoKind::kSegment);
  for (const uint32_t segment : {100000u, 0xFFFFFFFFu}) {
    ExpectRefused("undo", kFirstRecord + offsetof(UndoRecordHeader, segment), segment);
  }
  for (const uint32_t depth : {20u, 64u, 0xFFFFFFFFu}) {
    ExpectRefused("undo", kPayload + offsetof(Segment, local_depth), depth);
  }
  ExpectSound();
  EXPECT_EQ(ReadImage(*group_), before);
}

TEST_F(DamageTest, NoByteOfAnUndoLogMayBeAnother) {
  for (const bool erase : {false, true}) {
    if (erase) {
      ASSERT_TRUE(writer_->Erase(0, Keys(100, 50).data(), 50).ok());
    } else {
      ASSERT_TSPS_OK(Step(0, Keys(100, 1500), 1.0f));   // three blocks
      ASSERT_TSPS_OK(Step(0, Keys(8000, 1500), 1.0f));  // and new keys
    }
    CloseUnpublished();
    const auto bytes = Get<uint64_t>("undo", offsetof(UndoHeader, record_bytes));
    for (size_t at = 0; at < bytes; at += erase ? 7 : 499) {
      if (at >= bytes - 64) break;  // the end of the last record may be padding
      const auto old = Get<uint8_t>("undo", kFirstRecord + at);
      if (old == 0 && at % 64 >= 32) continue;  // the end of a part may be padding, too
      ExpectRefused("undo", kFirstRecord + at, uint8_t(old ^ 0x10));
    }
    ExpectSound();
  }
}

TEST_F(DamageTest, ADirectoryAndHeadsOfSegmentsThatCannotBeAreRefused) {
  Close();
  const auto depth = Get<uint32_t>("group", TableOffset() + offsetof(TableState, depth));
  ASSERT_GE(depth, 2u);
  const size_t first = sizeof(uint32_t) << depth;
  const uint32_t other_segment = Get<uint32_t>("t/directory", first + (first / 2));
  for (const uint32_t number : {other_segment, 64u, 0x80000000u, 0xFFFFFFFFu}) {
    ExpectRefused("t/directory", first, number);
  }
  const size_t local_depth = offsetof(Segment, local_depth);
  for (const uint32_t value : {0u, 1u, 27u, 0xFFFFFFFFu}) {
    if (value != Get<uint32_t>("t/segments", local_depth)) {
      ExpectRefused("t/segments", local_depth, value);
    }
  }
  ExpectRefused("t/segments", offsetof(Segment, used), kSegmentEntries);
  ExpectSound();
}

TEST_F(DamageTest, ReturnedRowsThatCannotBeAreRefused) {
  Close();
  for (const uint32_t row : {9000u, 0xFFFFFFFFu, Get<uint32_t>("t/free", 4)}) {
    ExpectRefused("t/free", 0, row);
  }
  ExpectSound();
}

TEST_F(DamageTest, NumbersOfACommitRecordThatCannotBeAreRefused) {
  Close();
  const size_t table = TableOffset();
  const size_t record = table - offsetof(CommitRecord, tables);
  ExpectRefused("group", record, Get<uint64_t>("group", record) + 2);
  for (const uint32_t n : {0u, 1025u, 0xFFFFFFFFu}) {
    ExpectRefused("group", record + offsetof(CommitRecord, n_tables), n);
  }
  for (const uint64_t rows : {uint64_t{0}, uint64_t{8999}, uint64_t{1} << 60, ~uint64_t{0}}) {
    ExpectRefused("group", table + offsetof(TableState, rows), rows);
  }
  ExpectRefused("group", table + offsetof(TableState, live), uint64_t{8979});
  ExpectRefused("group", table + offsetof(TableState, free_rows), uint64_t{21});
  for (const uint32_t segments : {0u, 1u, 1000u, 0xFFFFFFFFu}) {
    ExpectRefused("group", table + offsetof(TableState, segments), segments);
  }
  for (const uint32_t depth : {0u, 27u, 32u, 0xFFFFFFFFu}) {
    ExpectRefused("group", table + offsetof(TableState, depth), depth);
  }
  for (const uint32_t planes : {0u, 1u, 3u, 0xFFFFFFFFu}) {
    ExpectRefused("group", table + offsetof(TableState, planes), planes);
  }
  for (const uint32_t flags : {0u, 2u, 5u, 0x80000001u}) {
    ExpectRefused("group", table + offsetof(TableState, flags), flags);
  }
  for (const char first : {'\0', '/', '.', 'u'}) ExpectRefused("group", kNamesOffset, first);
  ExpectSound();
}

TEST_F(DamageTest, AListOfPlanesThatCannotBeIsRefused) {
  Close();
  PlaneListFile list = {};
  for (const size_t at : {offsetof(PlaneListFile, magic), offsetof(PlaneListFile, version),
                          offsetof(PlaneListFile, layout_hash), offsetof(PlaneListFile, generation),
                          offsetof(PlaneListFile, optimizer), offsetof(PlaneListFile, n_planes),
                          offsetof(PlaneListFile, planes), sizeof(list) - 4}) {
    ExpectRefused("t/planes.2", at, uint8_t(Get<uint8_t>("t/planes.2", at) ^ 1));
  }
  // Lists with a valid checksum that no table of this kind can have.
  const auto original = Get<PlaneListFile>("t/planes.2", 0);
  const auto expect_refused = [&](const auto& change) {
    list = original;
    change();
    list.crc = HeaderCrc(list);
    ExpectRefused("t/planes.2", 0, list);
  };
  expect_refused([&] { list.generation = 3; });
  for (const uint32_t kind : {0u, 1u, 3u, 4u}) expect_refused([&] { list.optimizer = kind; });
  for (const uint32_t n : {0u, 3u, 5u, 1000u}) expect_refused([&] { list.n_planes = n; });
  expect_refused([&] { list.planes[1].initial = 0x7FC00000u; });
  expect_refused([&] { list.planes[1].row_bytes = 4; });
  expect_refused([&] { list.planes[0].generation = 7; });
  expect_refused([&] { list.planes[2].role = 5; });
  ExpectSound();
}

// An insert searches for a free entry. In a segment with a wrong count it might search for ever.
TEST_F(DamageTest, SegmentsThatCountWrongAreRefusedBeforeAnythingIsPutIn) {
  Close();
  for (const uint32_t used : {0u, 1u, Get<uint32_t>("t/segments", 0) - 1}) {
    const uint32_t old = Get<uint32_t>("t/segments", 0);
    Set("t/segments", 0, used);
    auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok()) << group.status().message();
    EXPECT_EQ((*group)->Verify(0).code(), Code::kDataLoss);
    auto writer = (*group)->OpenWriter();
    if (writer.ok()) {  // OpenWriter does not notice every wrong count
      group_ = *group;
      writer_ = std::move(*writer);
      const std::string before = Bytes();
      const Status refused = Step(0, Keys(20000, 3000), 1.0f);
      EXPECT_EQ(refused.code(), Code::kDataLoss) << refused.message();
      EXPECT_NE(refused.message().find("counts"), std::string::npos) << refused.message();
      EXPECT_EQ(Bytes(), before);
      EXPECT_EQ(writer_->Erase(0, Keys(20, 9000).data(), 9000).status().code(), Code::kDataLoss);
      Close();
    }
    Set("t/segments", 0, old);
  }
  ExpectSound();
}

TEST_F(DamageTest, AKeyThatIsLedAstrayIsAnErrorOfWhoeverAsksForIt) {
  Close();
  const size_t at = FirstKey();
  const auto key = Get<int64_t>("t/segments", at);
  const auto row = Get<uint32_t>("t/segments", at + 8);
  for (const uint32_t wrong : {9001u, 0xFFFFFFFEu}) {
    Set("t/segments", at + 8, wrong);
    Reopen();
    const Status read = group_->Read([&](const ReadView& view) {
      const char* row_data = nullptr;
      view.Find(0, &key, 1, &row_data);
      return Status();
    });
    const Status listed = group_->Read([&](const ReadView& view) {
      VisitRows(view, 0, [](int64_t, uint32_t) {});
      return Status();
    });
    for (const Status& status :
         {read, listed, Step(0, {key}, 1.0f), writer_->Erase(0, &key, 1).status()}) {
      EXPECT_EQ(status.code(), Code::kDataLoss) << status.message();
      EXPECT_NE(status.message().find("key " + std::to_string(key)), std::string::npos)
          << status.message();
    }
    Close();
  }
  // The key gets the row of another key, so that two keys of one step have the same row.
  const auto other_key = Get<int64_t>("t/segments", at + sizeof(Entry));
  const auto other_row = Get<uint32_t>("t/segments", at + sizeof(Entry) + 8);
  if (other_row != 0 && other_row != kTombstone) {
    Set("t/segments", at + 8, other_row);
    Reopen();
    const Status refused = Step(0, {key, other_key}, 1.0f);
    EXPECT_EQ(refused.code(), Code::kDataLoss) << refused.message();
    EXPECT_EQ(writer_->Verify().code(), Code::kDataLoss);
    Close();
  }
  Set("t/segments", at + 8, row);
  ExpectSound();
}

// A split moves each key to the segment of its hash, where a wrong key would look right. It must be
// found before that.
TEST_F(DamageTest, AWrongKeyIsFoundBeforeASplitHidesIt) {
  Close();
  const size_t at = FirstKey();
  const auto key = Get<int64_t>("t/segments", at);
  Set("t/segments", at, key + 1);
  Reopen();
  EXPECT_EQ(writer_->Verify().code(), Code::kDataLoss);
  EXPECT_EQ(Step(0, Keys(20000, 60000), 1.0f).code(), Code::kDataLoss);
  Close();
  Set("t/segments", at, key);
  ExpectSound();
}

#ifdef TFSPS_FAULT_POINTS

// The control of tests/mutate: without the checks, the group opens with an impossible number.
TEST_F(DamageTest, WithTheChecksOffANumberThatCannotBeGetsThrough) {
  Close();
  const uint32_t row = Get<uint32_t>("t/free", 0);
  Set("t/free", 0, 9000u);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TFSPS_FAULT_OFF", "damage", 1);
    auto group = Group::Open(dir_ / "g");
    _exit(group.ok() && (*group)->OpenWriter().ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ExpectRefused("t/free", 0, 9000u);
  Set("t/free", 0, row);
  ExpectSound();
}

#endif  // TFSPS_FAULT_POINTS

}  // namespace
}  // namespace tsps
