// Steps of so many keys that threads share the work on the index. The number of threads changes no
// result.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/table/layout.h"
#include "executor/eigen_executor.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

constexpr int64_t kDim = 2;
constexpr int64_t kKeys = 60000;

// A group with one table, whose steps run on some threads.
class OneTable {
 public:
  OneTable(const std::string& path, int threads) : path_(path), executor_(threads) {
    auto group = Group::Create(path, kUuid, GroupDraw{1, 2});
    EXPECT_TRUE(group.ok()) << group.status().message();
    group_ = *group;
    auto writer = group_->OpenWriter();
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    writer_ = std::move(*writer);
    const auto table = writer_->CreateTable(MakeConfig("t", kDim, 0));
    EXPECT_TRUE(table.ok()) << table.status().message();
    table_ = *table;
    EXPECT_TRUE(writer_->BindOptimizer(table_, {OptimizerKind::kSgd, {}}, false).ok());
  }

  Status Step(const std::vector<int64_t>& keys) {
    const std::vector<float> gradients(keys.size() * kDim, 1.0f);
    const float rate = 0.5f;
    RowChanges changes;
    changes.step = group_->step() + 1;
    changes.updates = {{table_, keys.data(), gradients.data(), keys.size(), &rate, 1}};
    TSPS_RETURN_IF_ERROR(writer_->Prepare(changes, executor_));
    writer_->Publish();
    return Status();
  }

  Image Rows() { return ReadImage(*group_); }
  Status Verify() { return writer_->Verify(); }
  // Returns the index: all segments of the table.
  std::string Segments() {
    uint64_t n = 0;
    EXPECT_TRUE(group_
                    ->Read([&](const ReadView& view) {
                      n = view.Stats(table_).segments;
                      return Status();
                    })
                    .ok());
    EXPECT_GT(n, 8u);
    std::ifstream file(path_ + "/t/segments", std::ios::binary);
    std::string bytes(n * kSegmentBytes, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good());
    return bytes;
  }

 private:
  const std::string path_;
  EigenExecutor executor_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<GroupWriter> writer_;
  int table_ = 0;
};

std::vector<int64_t> Keys(int64_t begin, int64_t end) {
  std::vector<int64_t> keys(static_cast<size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

class SharedWorkTest : public ::testing::Test {
 protected:
  TempDir dir_;
};

TEST_F(SharedWorkTest, IndexAndRowsAreEqualOnAnyNumberOfThreads) {
  OneTable one(dir_ / "one", 1), four(dir_ / "four", 4);
  for (OneTable* const group : {&one, &four}) {
    ASSERT_TSPS_OK(group->Step(Keys(0, kKeys / 2)));
    ASSERT_TSPS_OK(group->Step(Keys(kKeys / 4, kKeys)));  // new and present keys
    ASSERT_TSPS_OK(group->Step(Keys(0, kKeys)));
    ASSERT_TSPS_OK(group->Verify());
  }
  EXPECT_TRUE(one.Rows() == four.Rows());
  EXPECT_TRUE(one.Segments() == four.Segments());
}

TEST_F(SharedWorkTest, TheFirstKeyThatIsThereTwiceIsNamedOnAnyNumberOfThreads) {
  OneTable one(dir_ / "one", 1), four(dir_ / "four", 4);
  for (const bool present : {false, true}) {
    for (int turn = 0; turn < 8; ++turn) {
      std::vector<int64_t> keys = Keys(0, kKeys);
      const size_t first = static_cast<size_t>(30000 + 1717 * turn);  // repeats key `turn`
      keys[first] = turn;
      for (size_t i = first + 1; i < keys.size(); i += 5) keys[i] = static_cast<int64_t>(i / 7);
      const std::string expected = "key " + std::to_string(turn) + " is there twice";
      for (OneTable* const group : {&one, &four}) {
        const Image before = group->Rows();
        const Status status = group->Step(keys);
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_NE(status.message().find(expected), std::string::npos)
            << status.message() << ", not " << expected;
        EXPECT_TRUE(group->Rows() == before);
      }
    }
    if (present) break;
    for (OneTable* const group : {&one, &four}) ASSERT_TSPS_OK(group->Step(Keys(0, kKeys)));
  }
  // No mark of a refused step is left.
  for (OneTable* const group : {&one, &four}) ASSERT_TSPS_OK(group->Step(Keys(0, kKeys)));
}

}  // namespace
}  // namespace tsps
