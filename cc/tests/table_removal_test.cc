// The removal of tables while other tables of the group are in use.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/table/layout.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

namespace fs = std::filesystem;

class TableRemovalTest : public GroupTest {
 protected:
  std::shared_ptr<Group> OpenReader() {
    auto group = Group::Open(dir_ / "g");
    EXPECT_TRUE(group.ok()) << group.status().message();
    return *group;
  }
  // The number of mappings of the table's files in this process.
  int Mappings(const std::string& table) {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);) {
      n += line.find(dir_ / "g/" + table + "/") != std::string::npos;
    }
    return n;
  }
  Code CodeOfRead(Group& group, int table, int64_t key = 1) {
    return group
        .Read([&](const ReadView& view) {
          const char* row = nullptr;
          view.Find(table, &key, 1, &row);
          return Status();
        })
        .code();
  }
};

TEST_F(TableRemovalTest, OthersStayWholeAndItsFilesAreGone) {
  const int a = AddTable("a", 4);
  const int b = AddTable("b", 8, OptimizerKind::kAdagrad);
  const int c = AddTable("c", 4);
  ASSERT_TSPS_OK(Step(a, {1, 2, 3}, 1.0f));
  ASSERT_TSPS_OK(Step(b, {1, 2, 3}, 1.0f));
  ASSERT_TSPS_OK(Step(c, {7}, 1.0f));
  Image expected = ReadImage(*group_);
  expected.tables[PlaceOf(b)].clear();

  ASSERT_TSPS_OK(writer_->RemoveTable(b));

  EXPECT_FALSE(fs::exists(dir_ / "g/b"));
  EXPECT_EQ(Mappings("b"), 0);
  EXPECT_EQ(ReadImage(*group_), expected);
  EXPECT_EQ(group_->FindTable("b").status().code(), Code::kNotFound);
  EXPECT_EQ(writer_->RemoveTable(b).code(), Code::kNotFound);
  ASSERT_TSPS_OK(writer_->Verify());
  Reopen();
  EXPECT_EQ(ReadImage(*group_), expected);
  ASSERT_TSPS_OK(writer_->Verify());
  ASSERT_TSPS_OK(Step(c, {7, 8}, 1.0f));
}

TEST_F(TableRemovalTest, ItsPlaceIsGivenAgainUnderAnotherNumber) {
  const int a = AddTable("a", 4);
  const int b = AddTable("b", 4);
  ASSERT_TSPS_OK(Step(b, {1}, 1.0f));
  auto reader = OpenReader();
  EXPECT_EQ(LookupRow(*reader, b, 1), LookupRow(*group_, b, 1));
  ASSERT_TSPS_OK(writer_->RemoveTable(b));
  const int new_table = AddTable("b", 6);  // it may have the same name
  EXPECT_EQ(new_table, b + kMaxTables);
  ASSERT_TSPS_OK(Step(new_table, {1}, 2.0f));
  for (Group* group : {group_.get(), reader.get()}) {
    EXPECT_EQ(*group->FindTable("b"), new_table);
    EXPECT_EQ(LookupRow(*group, new_table, 1).size(), 6u);
    EXPECT_EQ(CodeOfRead(*group, b), Code::kNotFound);
    EXPECT_EQ(*group->Tables(), (std::vector<int>{a, new_table}));
  }
  const int64_t key = 1;
  const float rows[4] = {};
  const float rate = 1.0f;
  EXPECT_EQ(
      writer_->ApplyStep(group_->step() + 1, {{b, &key, rows, 1, &rate, 1}}, executor_).code(),
      Code::kNotFound);
  EXPECT_EQ(writer_->Assign(b, &key, rows, nullptr, 1, executor_).code(), Code::kNotFound);
  EXPECT_EQ(writer_->Erase(b, &key, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(writer_->BindOptimizer(b, OptimizerConfig(), true).code(), Code::kNotFound);
  ASSERT_TSPS_OK(writer_->RemoveTable(new_table));
  EXPECT_EQ(AddTable("c", 4), b + 2 * kMaxTables);
  Reopen();
  EXPECT_EQ(*group_->FindTable("c"), b + 2 * kMaxTables);
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(TableRemovalTest, TheLimitIsOfTablesThatAreThere) {
  for (int i = 0; i < kMaxTables; ++i) {
    ASSERT_TRUE(writer_->CreateTable(MakeConfig("t" + std::to_string(i), 1)).ok()) << i;
  }
  EXPECT_EQ(writer_->CreateTable(MakeConfig("more", 1)).status().code(), Code::kResourceExhausted);
  const int table = *group_->FindTable("t517");
  ASSERT_TSPS_OK(writer_->RemoveTable(table));
  EXPECT_EQ(*writer_->CreateTable(MakeConfig("more", 1)), table + kMaxTables);
}

TEST_F(TableRemovalTest, AReaderMapsWhatItNeedsAndUnmapsWhatIsRemoved) {
  const int a = AddTable("a", 4);
  const int b = AddTable("b", 4);
  ASSERT_TSPS_OK(Step(a, {1}, 1.0f));
  ASSERT_TSPS_OK(Step(b, {1}, 1.0f));
  const int written = Mappings("b");
  auto reader = OpenReader();
  EXPECT_EQ(Mappings("b"), written);
  LookupRow(*reader, b, 1);
  EXPECT_GT(Mappings("b"), written);
  ASSERT_TSPS_OK(writer_->RemoveTable(b));
  EXPECT_GT(Mappings("b"), 0) << "the reader has not read since the removal";
  EXPECT_EQ(LookupRow(*reader, a, 1), LookupRow(*group_, a, 1));
  EXPECT_EQ(Mappings("b"), 0);
}

TEST_F(TableRemovalTest, AForgottenTableIsMappedAgainWhenItIsNeeded) {
  const int a = AddTable("a", 4);
  ASSERT_TSPS_OK(Step(a, {1}, 1.0f));
  const int written = Mappings("a");
  auto reader = OpenReader();
  const std::vector<float> row = LookupRow(*reader, a, 1);
  reader->Forget("a");
  reader->Forget("none");
  EXPECT_EQ(Mappings("a"), written);
  EXPECT_EQ(LookupRow(*reader, a, 1), row);
  EXPECT_EQ(*reader->FindTable("a"), a);
  group_->Forget("a");  // the writer still uses the table
  EXPECT_EQ(LookupRow(*group_, a, 1), row);
  ASSERT_TSPS_OK(Step(a, {1}, 1.0f));
}

// The table's memory stays mapped while the callback runs. After that, Read returns an error.
TEST_F(TableRemovalTest, AReadInProgressOutlivesTheRemoval) {
  AddTable("a", 4);
  const int b = AddTable("b", 4);
  ASSERT_TSPS_OK(Step(b, {1}, 1.0f));
  const std::vector<float> row = LookupRow(*group_, b, 1);
  for (const auto& group : {group_, OpenReader()}) {
    const int table = *group->FindTable("b");
    int calls = 0;
    const Status status = group->Read([&](const ReadView& view) -> Status {
      const int64_t key = 1;
      const char* row_data = nullptr;
      view.Find(table, &key, 1, &row_data);
      if (row_data == nullptr) return Status();
      if (++calls > 1) return Status();
      TSPS_RETURN_IF_ERROR(writer_->RemoveTable(table));
      const auto* const values = reinterpret_cast<const float*>(row_data);
      EXPECT_EQ(std::vector<float>(values, values + 4), row);
      return Status();
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_NE(status.message().find("has been removed"), std::string::npos) << status.message();
    const int new_table = AddTable("b", 4);
    ASSERT_TSPS_OK(Step(new_table, {1}, 1.0f));
  }
}

TEST_F(TableRemovalTest, ReadersBesideTablesThatComeAndGoSeeTheOthersWhole) {
  const int kept = AddTable("kept", 16);
  std::vector<int64_t> keys(64);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const std::vector<float> zeros(keys.size() * 16);
  ASSERT_TSPS_OK(writer_->Assign(kept, keys.data(), zeros.data(), nullptr, keys.size(), executor_));
  const uint64_t first = group_->step();
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::atomic<int> wrong{0};
  const auto read = [&](Group& group) {
    while (!stop.load()) {
      int64_t key = 5;
      std::vector<float> seen(16);
      uint64_t steps = 0;
      const Status status = group.Read([&](const ReadView& view) {
        steps = 0;
        for (const int table : view.tables()) {
          const char* row = nullptr;
          view.Find(table, &key, 1, &row);
          if (row != nullptr && table == kept) RacyRead(seen.data(), row, 16 * sizeof(float));
        }
        steps = view.step() - first;
        return Status();
      });
      ASSERT_TSPS_OK(status);
      // Every second step subtracts 1 from every element of the kept table.
      for (const float x : seen) wrong += x != -static_cast<float>((steps + 1) / 2);
      ++reads;
    }
  };
  auto reader_group = OpenReader();
  std::thread writers_group_reads([&] { read(*group_); });
  std::thread other_group_reads([&] { read(*reader_group); });
  std::vector<int64_t> many(20000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i) * 7919;
  for (int i = 0; i < 60 || (reads.load() < 200 && i < 2000); ++i) {
    const int removed = AddTable("passing", 8);
    ASSERT_TSPS_OK(Step(kept, keys, 1.0f));
    // So many keys that the helper thread works on the table's files, too.
    ASSERT_TSPS_OK(Step(removed, many, 1.0f));
    ASSERT_TSPS_OK(writer_->RemoveTable(removed));
  }
  stop = true;
  writers_group_reads.join();
  other_group_reads.join();
  EXPECT_EQ(wrong.load(), 0);
  ASSERT_TSPS_OK(writer_->Verify());
  EXPECT_EQ(CountTables(*group_), 1u);
}

TEST_F(TableRemovalTest, WhatAKilledWriterLeftOfTablesIsDeletedAndNothingElse) {
  AddTable("a", 4);
  writer_.reset();
  const fs::path group = dir_ / "g";
  fs::copy(group / "a", group / "killed", fs::copy_options::recursive);
  fs::create_directory(group / "empty");
  fs::create_directory(group / "mine");
  std::ofstream(group / "mine/rows") << "not a table's";
  fs::copy(group / "a", group / ".hidden", fs::copy_options::recursive);
  fs::copy(group / "a", group / "with more", fs::copy_options::recursive);
  std::ofstream(group / "with more/notes") << "mine";
  fs::create_directory_symlink(group / "a", group / "link");
  Reopen();
  EXPECT_FALSE(fs::exists(group / "killed"));
  EXPECT_FALSE(fs::exists(group / "empty"));
  EXPECT_TRUE(fs::exists(group / "mine/rows"));
  EXPECT_TRUE(fs::exists(group / ".hidden/plane.embedding.1"));
  EXPECT_TRUE(fs::exists(group / "with more/notes"));
  EXPECT_TRUE(fs::exists(group / "link/plane.embedding.1"));
  EXPECT_EQ(CountTables(*group_), 1u);
  ASSERT_TSPS_OK(writer_->Verify());
}

}  // namespace
}  // namespace tsps
