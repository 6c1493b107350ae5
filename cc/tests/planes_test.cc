// The contents of a table's planes after steps, assigns, erases and a change of the optimizer.
#include "core/table/planes.h"

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/group_fixture.h"

namespace tsps {
namespace {

// The order of the planes of a table that is bound to Adagrad.
enum { kRow, kAccumulator, kKey, kChanged, kCount, kTimes };

class PlanesTest : public GroupTest {
 protected:
  // The metadata are a count, initially 7, and two numbers of half precision, initially 1.
  int AddTableWithMetadata() {
    TableConfig config = MakeConfig("t", 4);
    config.metadata = {{"count", PlaneType::kUint32, 1, 7},
                       {"times", PlaneType::kFloat16, 2, 0x3C00}};
    auto table = writer_->CreateTable(config);
    EXPECT_TRUE(table.ok()) << table.status().message();
    Bind(*table, OptimizerKind::kAdagrad);
    return *table;
  }
  void Bind(int table, OptimizerKind kind) {
    OptimizerConfig optimizer;
    optimizer.kind = kind;
    optimizer.slot_init[0] = 0.25f;
    ASSERT_TSPS_OK(writer_->BindOptimizer(table, optimizer, /*replace=*/true));
  }
  // The first n bytes of a key's row in a plane; empty if the key or the plane does not exist.
  std::string Bytes(int table, size_t plane, int64_t key, size_t n) {
    std::string bytes;
    const Status read = group_->Read([&](const ReadView& view) {
      uint32_t row = kAbsentRow;
      view.FindRows(table, &key, 1, &row);
      const char* const at = row == kAbsentRow ? nullptr : view.Plane(table, plane, row);
      bytes = at == nullptr ? std::string() : std::string(at, n);
      return Status();
    });
    EXPECT_TRUE(read.ok()) << read.message();
    return bytes;
  }
  template <typename T>
  std::vector<T> Values(int table, size_t plane, int64_t key, size_t n) {
    const std::string bytes = Bytes(table, plane, key, n * sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

TEST_F(PlanesTest, ANewRowHasItsKeyAndInitialValuesInEveryPlane) {
  const int table = AddTableWithMetadata();
  ASSERT_TSPS_OK(Step(table, {5, -9, 1 << 20}, 2.0f));
  for (const int64_t key : {5, -9, 1 << 20}) {
    EXPECT_EQ(Values<float>(table, kAccumulator, key, 4), std::vector<float>(4, 4.25f));
    EXPECT_EQ(Values<int64_t>(table, kKey, key, 1), std::vector<int64_t>{key});
    EXPECT_EQ(Values<uint32_t>(table, kChanged, key, 1), std::vector<uint32_t>{0});
    EXPECT_EQ(Values<uint32_t>(table, kCount, key, 1), std::vector<uint32_t>{7});
    EXPECT_EQ(Values<uint16_t>(table, kTimes, key, 2), (std::vector<uint16_t>{0x3C00, 0x3C00}));
  }
  EXPECT_EQ(Bytes(table, kTimes + 1, 5, 1), "") << "the table has no such plane";
}

TEST_F(PlanesTest, ARowThatIsUsedAgainBeginsAnew) {
  const int table = AddTableWithMetadata();
  ASSERT_TSPS_OK(Step(table, {1, 2}, 2.0f));
  ASSERT_TRUE(writer_->Erase(table, std::vector<int64_t>{1}.data(), 1).ok());
  ASSERT_TSPS_OK(Step(table, {77}, 1.0f));
  EXPECT_EQ(Values<int64_t>(table, kKey, 77, 1), std::vector<int64_t>{77});
  EXPECT_EQ(Values<float>(table, kAccumulator, 77, 4), std::vector<float>(4, 1.25f));
  EXPECT_EQ(Values<uint32_t>(table, kCount, 77, 1), std::vector<uint32_t>{7});
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(PlanesTest, AnotherOptimizerReplacesTheSlotsAndNothingElse) {
  const int table = AddTableWithMetadata();
  ASSERT_TSPS_OK(Step(table, {3}, 2.0f));
  const std::vector<float> row = Values<float>(table, kRow, 3, 4);
  Bind(table, OptimizerKind::kAdam);
  for (const bool again : {false, true}) {
    if (again) Reopen();
    EXPECT_EQ(Values<float>(table, kRow, 3, 4), row);
    EXPECT_EQ(Values<float>(table, 1, 3, 4), std::vector<float>(4, 0.25f));
    EXPECT_EQ(Values<float>(table, 2, 3, 4), std::vector<float>(4, 0.0f));
    EXPECT_EQ(Values<int64_t>(table, 3, 3, 1), std::vector<int64_t>{3});
    EXPECT_EQ(Values<uint32_t>(table, 5, 3, 1), std::vector<uint32_t>{7});
    EXPECT_EQ(Values<uint16_t>(table, 6, 3, 2), (std::vector<uint16_t>{0x3C00, 0x3C00}));
    ASSERT_TSPS_OK(writer_->Verify());
  }
}

TEST_F(PlanesTest, ASlotOfOneFloatLiesBesideRowsOfFour) {
  const int table = AddTableWithMetadata();
  ASSERT_TSPS_OK(Step(table, {3}, 2.0f));
  Bind(table, OptimizerKind::kRowWiseAdagrad);
  EXPECT_EQ(Values<float>(table, kAccumulator, 3, 1), std::vector<float>{0.25f});
  ASSERT_TSPS_OK(Step(table, {3, 4}, 2.0f));
  ASSERT_TSPS_OK(Step(table, {4}, 3.0f));
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> accumulators = {10, 20};
  const float* const slots[] = {accumulators.data()};
  const int64_t keys[] = {9, 3};  // key 9 is new
  ASSERT_TSPS_OK(writer_->Assign(table, keys, rows.data(), slots, 2, executor_));
  for (const bool again : {false, true}) {
    if (again) Reopen();
    EXPECT_EQ(Values<float>(table, kAccumulator, 4, 1), std::vector<float>{13.25f});
    EXPECT_EQ(Values<float>(table, kAccumulator, 9, 1), std::vector<float>{10});
    EXPECT_EQ(Values<float>(table, kAccumulator, 3, 1), std::vector<float>{20});
    EXPECT_EQ(Values<float>(table, kRow, 3, 4), (std::vector<float>{5, 6, 7, 8}));
    EXPECT_EQ(Values<uint32_t>(table, kCount, 3, 1), std::vector<uint32_t>{7});
    ASSERT_TSPS_OK(writer_->Verify());
  }
}

TEST_F(PlanesTest, MetadataThatCannotBeIsRefusedByName) {
  const auto refused = [&](const MetadataPlane& plane) {
    TableConfig config = MakeConfig("t", 4);
    config.metadata = {plane};
    const Status status = writer_->CreateTable(config).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("'" + plane.name + "'"), std::string::npos) << status.message();
  };
  for (const char* name : {"", "Count", "a/b", "key", "changed", "embedding"}) refused({name});
  refused({std::string(32, 'a')});
  refused({"none", PlaneType::kUint32, 0});
  refused({"wide", PlaneType::kUint32, 65537});
  refused({"type", static_cast<PlaneType>(6)});
  refused({"half", PlaneType::kFloat16, 1, 0x10000});  // more bits than an element has
  refused({"inf", PlaneType::kFloat16, 1, 0x7C00});
  refused({"nan", PlaneType::kFloat32, 1, 0x7FC00000});
  refused({"nan2", PlaneType::kBfloat16, 1, 0x7FC0});
  TableConfig many = MakeConfig("t", 4);
  for (int i = 0; i < 10; ++i) many.metadata.push_back({"m" + std::to_string(i)});
  EXPECT_EQ(writer_->CreateTable(many).status().code(), Code::kInvalidArgument);
  many.metadata.resize(9);
  auto table = writer_->CreateTable(many);
  ASSERT_TRUE(table.ok()) << table.status().message();
  Bind(*table, OptimizerKind::kAdam);
  Reopen();
}

TEST_F(PlanesTest, AssignSetsThePlanesThatItNames) {
  const int table = AddTableWithMetadata();
  ASSERT_TSPS_OK(Step(table, {3}, 2.0f));
  const std::vector<float> row = Values<float>(table, kRow, 3, 4);
  const int64_t keys[] = {3, 9, 3};  // key 9 is new; of equal keys the last wins
  const uint32_t counts[] = {1, 2, 3};
  const uint16_t times[] = {4, 5, 6, 7, 8, 9};
  const PlaneValues count = {PlaneRole::kMetadata, "count", 4, counts};
  ASSERT_TSPS_OK(writer_->Assign(table, keys, {count}, 3, executor_));
  EXPECT_EQ(Values<float>(table, kRow, 3, 4), row);
  EXPECT_EQ(Values<float>(table, kAccumulator, 3, 4), std::vector<float>(4, 4.25f));
  EXPECT_EQ(Values<float>(table, kRow, 9, 4), LookupRow(*group_, table, 9))
      << "a new row has its initial values";
  ASSERT_TSPS_OK(
      writer_->Assign(table, keys, {{PlaneRole::kMetadata, "times", 4, times}}, 3, executor_));
  for (const bool again : {false, true}) {
    if (again) Reopen();
    EXPECT_EQ(Values<uint32_t>(table, kCount, 3, 1), std::vector<uint32_t>{3});
    EXPECT_EQ(Values<uint32_t>(table, kCount, 9, 1), std::vector<uint32_t>{2});
    EXPECT_EQ(Values<uint16_t>(table, kTimes, 3, 2), (std::vector<uint16_t>{8, 9}));
    EXPECT_EQ(Values<uint16_t>(table, kTimes, 9, 2), (std::vector<uint16_t>{6, 7}));
    ASSERT_TSPS_OK(writer_->Verify());
  }
  const auto refused = [&](const std::vector<PlaneValues>& planes, const char* text) {
    const Status status = writer_->Assign(table, keys, planes, 3, executor_);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  refused({{PlaneRole::kMetadata, "sum", 4, counts}}, "no plane 'sum'");
  refused({{PlaneRole::kSlot, "count", 4, counts}}, "no plane 'count'");
  refused({{PlaneRole::kKey, "key", 8, counts}}, "no plane 'key'");
  refused({{PlaneRole::kChanged, "changed", 4, counts}}, "no plane 'changed'");
  refused({{PlaneRole::kMetadata, "times", 2, times}}, "'times' of table");
  refused({count, count}, "'count' of table");
}

TEST_F(PlanesTest, ARowWithTheWrongKeyIsFound) {
  const int table = AddTableWithMetadata();
  ASSERT_TSPS_OK(Step(table, {3, 4}, 2.0f));
  writer_.reset();
  group_.reset();
  const int64_t wrong = 5;
  std::fstream file(dir_ / "g/t/plane.key.1", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8);
  file.write(reinterpret_cast<const char*>(&wrong), sizeof(wrong));
  file.close();
  Reopen();
  const Status verified = writer_->Verify();
  EXPECT_EQ(verified.code(), Code::kDataLoss);
  EXPECT_NE(verified.message().find("row 1 is that of key"), std::string::npos)
      << verified.message();
}

}  // namespace
}  // namespace tsps
