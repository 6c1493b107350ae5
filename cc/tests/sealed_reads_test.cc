// Readers during a sealed step: its rows are written, but other groups have not decided about it.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/group/row_gather.h"
#include "core/group/scan.h"
#include "tests/group_fixture.h"

namespace tsps {
namespace {

constexpr size_t kDim = 3;
constexpr int64_t kKeys = 3000;
constexpr float kHyper[] = {0.5f, 1e-7f};

class SealedReadsTest : public GroupTest {
 protected:
  void SetUp() override {
    GroupTest::SetUp();
    for (const char* name : {"a", "b"}) {
      tables_.push_back(AddTable(name, kDim, OptimizerKind::kAdagrad));
    }
    ASSERT_TSPS_OK(Prepare());
    writer_->Publish();
    reader_ = OpenGroup();
  }

  std::shared_ptr<Group> OpenGroup() {
    auto group = Group::Open(dir_ / "g");
    EXPECT_TRUE(group.ok()) << group.status().message();
    return group.ok() ? *group : nullptr;
  }

  // Prepares a step that updates, adds, sets and erases rows of both tables at random.
  Status Prepare() {
    RowChanges changes;
    changes.step = group_->step() + 1;
    keys_.clear();
    keys_.resize(3 * tables_.size());
    values_.resize(1000 * kDim);
    for (float& value : values_) value = static_cast<float>(random_() % 64) / 8 - 4;
    for (size_t t = 0; t < tables_.size(); ++t) {
      std::set<int64_t> drawn;
      const auto draw = [&](size_t i, size_t n) -> std::vector<int64_t>& {
        std::vector<int64_t>& keys = keys_[3 * t + i];
        while (keys.size() < n) {
          const auto key = static_cast<int64_t>(random_() % kKeys);
          if (drawn.insert(key).second) keys.push_back(key);
        }
        return keys;
      };
      const std::vector<int64_t>& updated = draw(0, 700);
      changes.updates.push_back(
          {tables_[t], updated.data(), values_.data(), updated.size(), kHyper, 2});
      const std::vector<int64_t>& set = draw(1, 60);
      const PlaneValues rows{PlaneRole::kEmbedding, "embedding", kDim * sizeof(float),
                             values_.data()};
      changes.writes.push_back({tables_[t], set.data(), set.size(), {rows}});
      const std::vector<int64_t>& erased = draw(2, 200);
      changes.erases.push_back({tables_[t], erased.data(), erased.size()});
    }
    return writer_->Prepare(changes, executor_);
  }
  void PrepareAndSeal() {
    ASSERT_TSPS_OK(Prepare());
    writer_->Write();
    writer_->Seal({group_->step() + 1, 7, 2});
  }
  Status StepAlone() {
    TSPS_RETURN_IF_ERROR(Prepare());
    writer_->Publish();
    return Status();
  }

  // Reads all rows and slots of a scan, in blocks.
  static Status Dump(Scan& scan, Image* image) {
    constexpr size_t kBlock = 500;
    image->step = scan.step();
    image->tables.resize(scan.tables().size());
    for (const int table : scan.tables()) {
      std::vector<int64_t> keys(kBlock);
      std::vector<float> rows(kBlock * kDim), slots(kBlock * kDim);
      char* to[kMaxPlanes] = {reinterpret_cast<char*>(rows.data()),
                              reinterpret_cast<char*>(slots.data())};
      while (true) {
        TSPS_ASSIGN_OR_RETURN(const size_t n, scan.Next(table, kBlock, keys.data(), to));
        if (n == 0) break;
        for (size_t i = 0; i < n; ++i) {
          std::vector<float>& values = image->tables[PlaceOf(table)][keys[i]];
          EXPECT_TRUE(values.empty()) << "key " << keys[i] << " occurs twice";
          values.assign(rows.begin() + static_cast<ptrdiff_t>(i * kDim),
                        rows.begin() + static_cast<ptrdiff_t>((i + 1) * kDim));
          values.insert(values.end(), slots.begin() + static_cast<ptrdiff_t>(i * kDim),
                        slots.begin() + static_cast<ptrdiff_t>((i + 1) * kDim));
        }
      }
    }
    return Status();
  }

  // The rows of all keys, looked up in a scan.
  std::vector<float> Find(Scan& scan, int table) {
    std::vector<int64_t> keys(kKeys);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    RowGather gather(*group_->Config(table), table, keys.data(), keys.size());
    const Status status = gather.Find(scan, executor_);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> rows(keys.size() * kDim);
    gather.CopyAll(rows.data(), executor_);
    return rows;
  }
  std::vector<float> Rows(const Image& image, int table) {
    std::vector<float> rows(kKeys * kDim);
    for (int64_t key = 0; key < kKeys; ++key) {
      float* const to = &rows[static_cast<size_t>(key) * kDim];
      const auto entry = image.tables[PlaceOf(table)].find(key);
      if (entry == image.tables[PlaceOf(table)].end()) {
        InitialRow(ConfigOf(*group_, table).initializer, key, kDim, to);
      } else {
        std::copy_n(entry->second.begin(), kDim, to);
      }
    }
    return rows;
  }

  std::mt19937_64 random_{11};
  std::vector<int> tables_;
  std::vector<std::vector<int64_t>> keys_;
  std::vector<float> values_;
  std::shared_ptr<Group> reader_;
};

TEST_F(SealedReadsTest, LookupsAndOpensSeeTheStepBefore) {
  for (int round = 0; round < 6; ++round) {
    const Image before = ReadImage(*group_);
    PrepareAndSeal();
    EXPECT_EQ(ReadImage(*reader_), before);
    EXPECT_EQ(ReadImage(*group_), before) << "the group of the writer";
    const auto opened = OpenGroup();
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(ReadImage(*opened), before);
    ASSERT_TSPS_OK(opened->Announce(tables_[0], keys_[0].data(), keys_[0].size(), 1).status());
    ASSERT_TSPS_OK(opened->Verify(tables_[0]));
    if (round % 2 == 0) {
      writer_->Abort();
      EXPECT_EQ(ReadImage(*reader_), before);
    } else {
      writer_->Publish();
      EXPECT_EQ(ReadImage(*reader_).step, before.step + 1);
    }
    ASSERT_TSPS_OK(writer_->Verify());
  }
}

TEST_F(SealedReadsTest, AScanThatBeginsThenIsOfTheStepBeforeHoweverItIsDecided) {
  for (int round = 0; round < 8; ++round) {
    const Image before = ReadImage(*group_);
    PrepareAndSeal();
    auto scan = Scan::Begin(*reader_, {});
    auto lookups = Scan::Begin(*reader_, {tables_[1]}, Scan::RowsAlone());
    ASSERT_TRUE(scan.ok()) << scan.status().message();
    ASSERT_TRUE(lookups.ok()) << lookups.status().message();
    Image image;
    if (round % 4 == 3) {
      ASSERT_TSPS_OK(Dump(**scan, &image));  // while the step is sealed
      EXPECT_EQ(Find(**lookups, tables_[1]), Rows(before, tables_[1]));
    }
    if (round % 2 == 0) {
      writer_->Publish();
    } else {
      writer_->Abort();
    }
    for (int i = 0; i < 2; ++i) ASSERT_TSPS_OK(StepAlone());
    if (round % 4 != 3) ASSERT_TSPS_OK(Dump(**scan, &image));
    EXPECT_TRUE(image == before) << round;
    EXPECT_EQ(Find(**lookups, tables_[1]), Rows(before, tables_[1])) << round;
    ASSERT_TSPS_OK((*scan)->Check());
  }
}

TEST_F(SealedReadsTest, AScanThatWasAnnouncedBeforeGoesOn) {
  const Image before = ReadImage(*group_);
  auto scan = Scan::Begin(*reader_, {});
  ASSERT_TRUE(scan.ok()) << scan.status().message();
  PrepareAndSeal();
  Image image;
  ASSERT_TSPS_OK(Dump(**scan, &image));
  EXPECT_TRUE(image == before);
  writer_->Publish();
}

#ifndef __SANITIZE_THREAD__  // it reports reads of the undo log that the writer overwrites
TEST_F(SealedReadsTest, StressOfReadersBesideStepsThatAreSealedAndDecided) {
  // All elements of the table are equal in each step, so that a mixture of steps shows.
  const int table = AddTable("one", kDim, OptimizerKind::kSgd);
  std::vector<int64_t> keys(2000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const std::vector<float> gradients(keys.size() * kDim, 1.0f);
  const std::vector<float> zeros(keys.size() * kDim);
  ASSERT_TSPS_OK(
      writer_->Assign(table, keys.data(), zeros.data(), nullptr, keys.size(), executor_));
  const float rate[] = {1.0f};
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      const auto group = OpenGroup();
      while (!stop.load()) {
        RowGather gather(*group->Config(table), table, keys.data(), keys.size());
        std::vector<float> rows(keys.size() * kDim);
        if (r == 0) {
          const auto scan = Scan::Begin(*group, {table}, Scan::RowsAlone());
          ASSERT_TRUE(scan.ok()) << scan.status().message();
          ASSERT_TSPS_OK(gather.Find(**scan, executor_));
          gather.CopyAll(rows.data(), executor_);
        } else {
          ASSERT_TSPS_OK(group->Read([&](const ReadView& view) {
            gather.Find(view, executor_);
            gather.CopyAll(rows.data(), executor_);
            return Status();
          }));
        }
        for (const float value : rows) ASSERT_EQ(value, rows[0]) << "a mixture of two steps";
        ++reads;
      }
    });
  }
  for (int step = 0; step < 60 || reads.load() < 100; ++step) {
    RowChanges changes;
    changes.step = group_->step() + 1;
    changes.updates.push_back({table, keys.data(), gradients.data(), keys.size(), rate, 1});
    ASSERT_TSPS_OK(writer_->Prepare(changes, executor_));
    writer_->Write();
    writer_->Seal({*changes.step, 7, 2});
    const int seen = reads.load();
    while (step % 8 == 0 && reads.load() < seen + 3) std::this_thread::yield();
    if (step % 3 == 0) {
      writer_->Abort();
    } else {
      writer_->Publish();
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
}
#endif

}  // namespace
}  // namespace tsps
