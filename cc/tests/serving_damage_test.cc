// Damaged serving files give errors or right rows, and killed writers leave whole files or none.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/serving/serving_table.h"
#include "core/serving/table_manifest.h"
#include "tests/killed_at.h"
#include "tests/serving_fixture.h"

namespace tsps {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& content) {
  std::filesystem::remove(path);  // the file has mode 0444
  std::ofstream(path, std::ios::binary) << content;
}

// A version with a base and a layer.
class ServingDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(dir_ / "assets");
    std::filesystem::create_directories(dir_ / "tables/t");
    for (int64_t i = 0; i < 900; ++i) rows_[i * 977] = RandomRow(random_, info_.dim);
    ASSERT_TRUE(WriteRows(dir_ / "tables/t/base", info_, rows_, nullptr).ok());
    Rows changes;
    for (int64_t i = 0; i < 300; i += 3) {
      changes[i * 977] =
          i % 2 == 0 ? std::nullopt : std::make_optional(RandomRow(random_, info_.dim));
    }
    for (const auto& [key, row] : changes) rows_[key] = row;
    ServingInfo info = info_;
    info.first_sequence = info.last_sequence = 1;
    const Files older;
    ASSERT_TRUE(WriteRows(dir_ / "tables/t/layer", info, changes, &older).ok());
    WriteManifest();
    for (const auto& [key, row] : rows_) keys_.push_back(key);
    for (int64_t i = 0; i < 100; ++i) keys_.push_back(-i);
  }

  void WriteManifest() {
    TableManifest manifest{"t", 0, {}};
    for (const char* const name : {"layer", "base"}) {
      const auto file = Opened(dir_ / ("tables/t/" + std::string(name)));
      manifest.files.push_back(
          {"tables/t/" + std::string(name), file->header().file_bytes, file->header().crc});
    }
    WriteAll(Manifest(), EncodeManifest(manifest));
  }
  std::string Manifest() const { return dir_ / "assets/t"; }

  // Opens the version, and looks up all keys. Returns whether there was no error.
  bool Read(bool verify, std::vector<float>* found) {
    ServingFiles files;
    auto table = ServingTable::Open(Manifest(), files, verify);
    if (!table.ok()) return false;
    SerialExecutor executor;
    found->assign(keys_.size() * (*table)->dim(), -77);
    return (*table)->Lookup(keys_.data(), keys_.size(), found->data(), executor).ok();
  }

  std::mt19937_64 random_{3};
  ServingInfo info_ = InfoOf(8, RowCode::kFloat32);
  TempDir dir_;
  Rows rows_;
  std::vector<int64_t> keys_;
};

// With verification, a change of any byte gives an error or has no effect. Without it, rows may be
// wrong, but no read leaves the file (the sanitizers check that).
TEST_F(ServingDamage, MutationsAreFoundOrHaveNoEffect) {
  std::vector<float> expected;
  ASSERT_TRUE(Read(true, &expected));
  const std::string paths[] = {dir_ / "tables/t/base", dir_ / "tables/t/layer", Manifest()};
  int errors = 0, wrong_without = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string& path = paths[random_() % 3];
    const std::string whole = ReadAll(path);
    std::string damaged = whole;
    const uint64_t kind = random_() % 8;
    const size_t at =
        random_() % (random_() % 2 == 0 ? std::min<size_t>(whole.size(), 300) : whole.size());
    if (kind == 0) {
      damaged.resize(at);
    } else if (kind == 1) {
      damaged += std::string(random_() % 5000 + 1, 'x');
    } else if (kind == 2) {
      for (size_t i = at; i < std::min(at + 64, damaged.size()); ++i)
        damaged[i] = static_cast<char>(random_());
    } else {
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random_() % 8));
    }
    WriteAll(path, damaged);
    std::vector<float> found;
    const bool verified = Read(true, &found);
    if (verified) {
      ASSERT_EQ(found, expected) << "round " << round << " " << path << " at " << at;
    }
    errors += !verified;
    if (Read(false, &found)) wrong_without += found != expected;
    WriteAll(path, whole);
  }
  EXPECT_GT(errors, 1500);
  EXPECT_GT(wrong_without, 0);  // the control: only the checksums find damaged rows
}

// Numbers of a damaged index are not followed. Its checksums are made to match.
TEST_F(ServingDamage, AnIndexDoesNotLeadOutOfTheFile) {
  const std::string path = dir_ / "tables/t/base";
  const std::string whole = ReadAll(path);
  int found_damage = 0;
  for (int round = 0; round < 300; ++round) {
    std::string damaged = whole;
    const size_t bucket = random_() % 100;
    const size_t at = kServingPage + bucket * sizeof(Bucket) + random_() % 8;
    damaged[at] = static_cast<char>(random_());
    WriteAll(path, damaged);
    ServingFiles files;
    auto table = ServingTable::Open(Manifest(), files, false);
    ASSERT_TRUE(table.ok());
    std::vector<float> found(keys_.size() * info_.dim);
    SerialExecutor executor;
    const Status status = (*table)->Lookup(keys_.data(), keys_.size(), found.data(), executor);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kDataLoss);
      ++found_damage;
    }
    auto merge = LayerMerge::Of((*table)->files());  // cursors are as careful
    if (merge.ok()) {
      static_cast<void>(WriteBase(dir_ / "merged", ServingInfo::Of(*(*table)->files().back()),
                                  **merge, NoProgress));
    }
  }
  EXPECT_GT(found_damage, 10);
}

TEST_F(ServingDamage, ManifestsNameFilesOfTheirVersionOnly) {
  TableManifest manifest{"t", 0, {{"../secret", 1, 2}}};
  EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), "m").status().code(), Code::kDataLoss);
  manifest.files[0].path = "/etc/passwd";
  EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), "m").status().code(), Code::kDataLoss);
  manifest.files[0].path = "tables/t/base";
  auto decoded = DecodeManifest(EncodeManifest(manifest), "m");
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->files[0].path, "tables/t/base");
}

#ifdef TFSPS_FAULT_POINTS
TEST_F(ServingDamage, KilledWritersLeaveWholeFilesOrNone) {
  Rows many;
  for (int64_t i = 0; i < 40000; ++i) many[i] = std::vector<float>(2, static_cast<float>(i));
  const ServingInfo info = InfoOf(2, RowCode::kFloat32);
  int whole = 0;
  for (const char* const point : {"serving_file.rows", "serving_file.written",
                                  "serving_file.synced", "serving_file.renamed"}) {
    const std::string path = dir_ / point;
    ASSERT_TRUE(
        KilledAt(point, 1, [&] { static_cast<void>(WriteRows(path, info, many, nullptr)); }));
    if (std::filesystem::exists(path)) {
      ++whole;
      EXPECT_TRUE(Opened(path)->Verify().ok());
    }
    ASSERT_TRUE(WriteRows(path, info, many, nullptr).ok());  // takes over what is left
    EXPECT_EQ(Opened(path)->header().n_rows, many.size());
  }
  EXPECT_EQ(whole, 1);
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "")) {
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  }
}
#endif

}  // namespace
}  // namespace tsps
