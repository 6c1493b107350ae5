// Serving files and tables, compared with plain maps.
#include "core/serving/serving_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/serving_fixture.h"

namespace tsps {
namespace {

// A table of a version, and the map that it must equal.
class VersionModel {
 public:
  VersionModel(uint64_t seed, uint32_t dim, RowCode code, size_t keys)
      : random_(seed), info_(InfoOf(dim, code)), most_(keys) {}

  // Changes about n keys at random: new rows, other rows, and erased ones.
  Rows Change(size_t n) {
    Rows changes;
    for (size_t i = 0; i < n; ++i) {
      const int64_t key = Key();
      if (random_() % 4 == 0) {
        changes[key] = std::nullopt;
      } else {
        changes[key] = RandomRow(random_, info_.dim);
      }
    }
    for (const auto& [key, row] : changes) rows_[key] = row;
    return changes;
  }
  void WriteBaseFile() { files_ = {Write(rows_, nullptr)}; }
  void WriteLayerFile(const Rows& changes) {
    files_.insert(files_.begin(), Write(changes, &files_));
  }
  // Merges files [begin, end).
  void Merge(size_t begin, size_t end) {
    const Files merged(files_.begin() + static_cast<ptrdiff_t>(begin),
                       files_.begin() + static_cast<ptrdiff_t>(end));
    auto merge = LayerMerge::Of(merged);
    ASSERT_TRUE(merge.ok()) << merge.status().message();
    ServingInfo info = ServingInfo::Of(*merged.front());
    info.first_sequence = merged.back()->header().first_sequence;
    const std::string path = NextPath();
    const Files older(files_.begin() + static_cast<ptrdiff_t>(end), files_.end());
    const Status status = end == files_.size()
                              ? WriteBase(path, info, **merge, NoProgress)
                              : WriteLayer(path, info, **merge, Layers(older), NoProgress);
    ASSERT_TRUE(status.ok()) << status.message();
    files_.erase(files_.begin() + static_cast<ptrdiff_t>(begin),
                 files_.begin() + static_cast<ptrdiff_t>(end));
    files_.insert(files_.begin() + static_cast<ptrdiff_t>(begin), Opened(path));
  }
  void Check() {
    auto table = ServingTable::Of("test", files_);
    ASSERT_TRUE(table.ok()) << table.status().message();
    ASSERT_TRUE((*table)->Verify().ok());
    std::vector<int64_t> keys;
    for (size_t i = 0; i < 3000; ++i)
      keys.push_back(i % 3 == 0 ? static_cast<int64_t>(random_()) : Key());
    ExpectRows(**table, info_, rows_, keys);
  }
  size_t n_files() const { return files_.size(); }
  uint64_t Random() { return random_(); }
  const Files& files() const { return files_; }

 private:
  int64_t Key() {
    const auto number = static_cast<int64_t>(random_() % most_);
    return number % 2 == 0 ? number : number * -0x7fffffffff;  // dense and scattered keys
  }
  std::string NextPath() { return dir_ / std::to_string(written_++); }
  static Files Layers(const Files& files) {
    Files layers;
    for (const auto& file : files) {
      if (file->header().is_layer == 1) layers.push_back(file);
    }
    return layers;
  }
  std::shared_ptr<const ServingFile> Write(const Rows& rows, const Files* older) {
    info_.first_sequence = info_.last_sequence = ++sequence_;
    if (older == nullptr) info_.first_sequence = 0;
    info_.step = sequence_ * 10;
    const std::string path = NextPath();
    const Files layers = older == nullptr ? Files() : Layers(*older);
    const Status status = WriteRows(path, info_, rows, older == nullptr ? nullptr : &layers);
    EXPECT_TRUE(status.ok()) << status.message();
    return Opened(path);
  }

  std::mt19937_64 random_;
  ServingInfo info_;
  const size_t most_;
  TempDir dir_;
  Rows rows_;
  Files files_;
  uint64_t sequence_ = 0;
  size_t written_ = 0;
};

class ServingModel : public ::testing::TestWithParam<int> {};

// Random layers, erased keys, merges, widths and codes.
TEST_P(ServingModel, EqualsAMap) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const uint32_t dims[] = {1, 3, 8, 16, 33, 64, 200};
  const auto code = static_cast<RowCode>(1 + random() % 4);
  const uint32_t dim = dims[random() % 7];
  const size_t keys = size_t{1} << (random() % 13);
  SCOPED_TRACE(::testing::Message() << RowCodeName(code) << " dim " << dim << " keys " << keys);
  VersionModel model(random(), dim, code, keys);
  model.Change(random() % (2 * keys));
  model.WriteBaseFile();
  model.Check();
  for (int round = 0; round < 12; ++round) {
    if (model.n_files() == kMaxLayers + 1 || (model.n_files() > 2 && model.Random() % 3 == 0)) {
      const size_t begin = model.Random() % (model.n_files() - 1);
      const size_t most = model.n_files() - begin;
      model.Merge(begin, begin + 2 + model.Random() % (most - 1));
    } else {
      model.WriteLayerFile(model.Change(model.Random() % (keys / 2 + 2)));
    }
    if (HasFatalFailure()) return;
    model.Check();
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, ServingModel, ::testing::Range(0, 40));

// The layers of one size are covered by one filter, and a smaller one above them is not.
TEST(ServingCover, IsSmallBesideItsLayer) {
  VersionModel model(5, 16, RowCode::kFloat32, 1 << 14);
  model.Change(1 << 14);
  model.WriteBaseFile();
  for (int layer = 0; layer < 4; ++layer) model.WriteLayerFile(model.Change(400));
  model.WriteLayerFile(model.Change(20));
  const Files& files = model.files();
  EXPECT_EQ(files[0]->header().cover_blocks, 0u);
  EXPECT_EQ(files[4]->header().cover_blocks, 0u);
  EXPECT_GT(files[1]->header().cover_blocks, 0u);
  EXPECT_EQ(files[1]->header().cover_from, files[4]->header().first_sequence);
  const FileStack stack(files);
  ASSERT_EQ(stack.groups.size(), 2u);
  EXPECT_EQ(stack.groups[1].begin, 1u);
  EXPECT_EQ(stack.groups[1].end, 5u);
  model.Check();
}

// Rows that exceed the sorter's memory pass through a file.
TEST(EntrySorter, SortsMoreThanItsMemory) {
  const ServingInfo info = InfoOf(256, RowCode::kFloat32);
  const size_t n = 60000;  // 61 MB
  EntrySorter sorter(info.row_code, info.dim, info.hash_seed, n, "/dev/shm");
  std::vector<float> row(info.dim);
  for (size_t i = 0; i < n; ++i) {
    std::fill(row.begin(), row.end(), static_cast<float>(i));
    ASSERT_TRUE(sorter.Add(static_cast<int64_t>(i % 50000), row.data()).ok());
  }
  uint64_t before = 0;
  size_t count = 0;
  for (ServingEntry entry;; ++count) {
    auto more = sorter.Next(&entry);
    ASSERT_TRUE(more.ok());
    if (!*more) break;
    ASSERT_TRUE(count == 0 || entry.hash > before);
    before = entry.hash;
    float first;
    std::memcpy(&first, entry.row + 4 * 255, sizeof(first));
    const int64_t expected = entry.key < 10000 ? entry.key + 50000 : entry.key;  // the last one
    ASSERT_EQ(first, static_cast<float>(expected));
  }
  EXPECT_EQ(count, 50000u);
}

TEST(RowCodes, Int8IsWithinHalfAStep) {
  std::mt19937_64 random(1);
  for (const size_t dim : {1, 2, 7, 64, 100}) {
    for (int round = 0; round < 100; ++round) {
      std::vector<float> row = RandomRow(random, dim);
      if (round % 5 == 0) std::fill(row.begin(), row.end(), row[0]);
      if (round % 7 == 0) row[0] = 1e30f;
      const auto [low, high] = std::minmax_element(row.begin(), row.end());
      const double step = (static_cast<double>(*high) - *low) / 255;
      const std::vector<float> stored = Stored(RowCode::kInt8, row);
      for (size_t i = 0; i < dim; ++i) {
        ASSERT_LE(std::abs(static_cast<double>(stored[i]) - row[i]),
                  step * 0.501 + 1e-6 * std::abs(*high));
      }
    }
  }
  std::vector<float> row = {1, std::nanf("")};
  char coded[16];
  EXPECT_EQ(EncodeRow(RowCode::kInt8, row.data(), 2, coded).code(), Code::kInvalidArgument);
  row[1] = 1e6f;
  EXPECT_EQ(EncodeRow(RowCode::kFloat16, row.data(), 2, coded).code(), Code::kInvalidArgument);
  EXPECT_TRUE(EncodeRow(RowCode::kBfloat16, row.data(), 2, coded).ok());
}

TEST(ServingTable, RefusesKeysOutsideOfABoundedTable) {
  const TempDir dir;
  ServingInfo info = InfoOf(4, RowCode::kFloat32);
  info.key_limit = 10;
  ASSERT_TRUE(WriteRows(dir / "base", info, {{3, std::vector<float>(4, 1.0f)}}, nullptr).ok());
  ServingFiles files;
  auto table = ServingTable::Open(dir / "base", files, true);
  ASSERT_TRUE(table.ok()) << table.status().message();
  SerialExecutor executor;
  float rows[8];
  const int64_t keys[] = {3, 10};
  const Status status = (*table)->Lookup(keys, 2, rows, executor);
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_NE(status.message().find("keys[1] = 10 is not in [0, 10)"), std::string::npos);
}

}  // namespace
}  // namespace tsps
