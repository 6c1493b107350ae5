#include "core/parameter_file.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "core/crc32c.h"
#include "core/parameter_file_layout.h"

namespace tsps {
namespace {

class ParameterFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "parameter_file_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder_ + "/table.tsps";
  }
  void TearDown() override {
    for (const std::string& name : Names()) unlink((folder_ + "/" + name).c_str());
    rmdir(folder_.c_str());
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    DIR* folder = opendir(folder_.c_str());
    while (const dirent* entry = readdir(folder)) {
      if (entry->d_name[0] != '.') names.push_back(entry->d_name);
    }
    closedir(folder);
    return names;
  }

  static ParameterFileInfo Info(OptimizerKind kind, uint32_t dim, uint64_t n_rows) {
    ParameterFileInfo info;
    info.dim = dim;
    info.n_rows = n_rows;
    info.optimizer.kind = kind;
    info.optimizer.slot_init[0] = 0.1f;
    info.initializer = {InitializerKind::kUniform, -0.5f, 0.25f, 1234567890123, 42};
    info.step = 77;
    return info;
  }

  static int64_t Key(size_t i) { return static_cast<int64_t>(i) * 1000003 - 5; }
  static float Value(size_t row, size_t d, int field) {
    return static_cast<float>(row * 7 + d) + 0.25f * static_cast<float>(field);
  }

  // Writes the file in batches of 1000 rows.
  Status Write(const ParameterFileInfo& info) const {
    TSPS_ASSIGN_OR_RETURN(auto writer, ParameterFileWriter::Create(path_, info));
    const size_t n_slots = static_cast<size_t>(SlotCount(info.optimizer.kind));
    for (size_t first = 0; first < info.n_rows; first += 1000) {
      const size_t n = std::min<size_t>(1000, info.n_rows - first);
      std::vector<int64_t> keys(n);
      std::vector<std::vector<float>> fields(1 + n_slots, std::vector<float>(n * info.dim));
      std::vector<const float*> slots;
      for (size_t i = 0; i < n; ++i) {
        keys[i] = Key(first + i);
        for (size_t f = 0; f <= n_slots; ++f) {
          for (size_t d = 0; d < info.dim; ++d) {
            fields[f][i * info.dim + d] = Value(first + i, d, static_cast<int>(f));
          }
        }
      }
      for (size_t f = 1; f <= n_slots; ++f) slots.push_back(fields[f].data());
      TSPS_RETURN_IF_ERROR(writer->Append(keys.data(), fields[0].data(), slots.data(), n));
    }
    return writer->Finish();
  }

  // Opens the file and reads every block.
  Status ReadAll() const {
    TSPS_ASSIGN_OR_RETURN(const auto reader, ParameterFileReader::Open(path_));
    const ParameterFileInfo& info = reader->info();
    for (size_t block = 0; block < reader->n_blocks(); ++block) {
      const size_t n = reader->rows_in_block(block);
      std::vector<int64_t> keys(n);
      std::vector<std::vector<float>> fields(5, std::vector<float>(n * info.dim));
      float* slots[] = {fields[1].data(), fields[2].data(), fields[3].data(), fields[4].data()};
      TSPS_RETURN_IF_ERROR(reader->ReadBlock(block, keys.data(), fields[0].data(), slots));
      for (size_t i = 0; i < n; ++i) {
        const size_t row = block * kRowsPerBlock + i;
        EXPECT_EQ(keys[i], Key(row));
        for (int f = 0; f <= SlotCount(info.optimizer.kind); ++f) {
          for (size_t d = 0; d < info.dim; ++d)
            EXPECT_EQ(fields[f][i * info.dim + d], Value(row, d, f));
        }
      }
    }
    return Status();
  }

  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void SetBytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Sets one field of the header and makes its checksum right again, as an attacker would.
  template <typename T>
  static std::string Forged(std::string bytes, size_t offset, T value) {
    std::memcpy(&bytes[offset], &value, sizeof(value));
    const uint32_t crc = Crc32c(0, bytes.data(), offsetof(ParameterFileHeader, crc32c));
    std::memcpy(&bytes[offsetof(ParameterFileHeader, crc32c)], &crc, sizeof(crc));
    return bytes;
  }

  std::string folder_, path_;
};

TEST_F(ParameterFile, GivesBackWhatWasWritten) {
  for (OptimizerKind kind :
       {OptimizerKind::kNone, OptimizerKind::kSgd, OptimizerKind::kAdagrad, OptimizerKind::kAdam}) {
    for (uint32_t dim : {1, 17}) {
      for (uint64_t n : {0, 1, 4095, 4096, 4097, 9000}) {
        const ParameterFileInfo info = Info(kind, dim, n);
        ASSERT_TRUE(Write(info).ok());
        const auto reader = ParameterFileReader::Open(path_);
        ASSERT_TRUE(reader.ok()) << reader.status().message();
        const ParameterFileInfo& read = (*reader)->info();
        EXPECT_EQ(read.dim, dim);
        EXPECT_EQ(read.n_rows, n);
        EXPECT_EQ(read.step, 77u);
        EXPECT_EQ(read.optimizer.kind, kind);
        EXPECT_EQ(read.optimizer.slot_init[0], 0.1f);
        EXPECT_EQ(read.initializer.kind, InitializerKind::kUniform);
        EXPECT_EQ(read.initializer.a, -0.5f);
        EXPECT_EQ(read.initializer.b, 0.25f);
        EXPECT_EQ(read.initializer.seed, 1234567890123u);
        EXPECT_EQ(read.initializer.salt, 42u);
        EXPECT_EQ((*reader)->n_blocks(), (n + 4095) / 4096);
        const Status all = ReadAll();
        EXPECT_TRUE(all.ok()) << all.message();
        EXPECT_EQ(Names(), std::vector<std::string>{"table.tsps"});
      }
    }
  }
}

TEST_F(ParameterFile, SlotsCanBeSkipped) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kAdam, 3, 10)).ok());
  const auto reader = ParameterFileReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  std::vector<int64_t> keys(10);
  std::vector<float> rows(30);
  ASSERT_TRUE((*reader)->ReadBlock(0, keys.data(), rows.data(), nullptr).ok());
  EXPECT_EQ(keys[9], Key(9));
  EXPECT_EQ(rows[29], Value(9, 2, 0));
  EXPECT_EQ((*reader)->ReadBlock(1, keys.data(), rows.data(), nullptr).code(), Code::kOutOfRange);
}

TEST_F(ParameterFile, IsRefusedWithAnyByteOfItChanged) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kAdagrad, 2, 5)).ok());
  const std::string bytes = Bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit : {0, 3, 7}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      SetBytes(changed);
      const auto reader = ParameterFileReader::Open(path_);
      Status status = reader.status();
      if (status.ok()) {
        std::vector<int64_t> keys(5);
        std::vector<float> rows(10);
        status = (*reader)->ReadBlock(0, keys.data(), rows.data(), nullptr);
        EXPECT_NE(status.message().find("block 0"), std::string::npos);
      }
      EXPECT_EQ(status.code(), Code::kDataLoss) << "byte " << i;
      EXPECT_NE(status.message().find(path_), std::string::npos);
    }
  }
}

TEST_F(ParameterFile, IsRefusedAtEveryOtherLength) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kAdagrad, 2, 5)).ok());
  const std::string bytes = Bytes();
  for (size_t n = 0; n < bytes.size(); ++n) {
    SetBytes(bytes.substr(0, n));
    const Status status = ParameterFileReader::Open(path_).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << n;
    EXPECT_NE(status.message().find("truncated"), std::string::npos) << status.message();
  }
  SetBytes(bytes + '\0');
  EXPECT_EQ(ParameterFileReader::Open(path_).status().code(), Code::kDataLoss);
}

TEST_F(ParameterFile, TruncatedWhileOpenIsAnErrorNotACrash) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kNone, 4, 9000)).ok());
  const auto reader = ParameterFileReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(truncate(path_.c_str(), 5000), 0);
  std::vector<int64_t> keys(4096);
  std::vector<float> rows(4096 * 4);
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ((*reader)->ReadBlock(block, keys.data(), rows.data(), nullptr).code(),
              Code::kDataLoss);
  }
}

TEST_F(ParameterFile, HostileHeadersWithGoodChecksumsAreRefused) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kAdagrad, 2, 5)).ok());
  const std::string bytes = Bytes();
  const auto refused = [&](const std::string& forged) {
    SetBytes(forged);
    return ParameterFileReader::Open(path_).status().code() == Code::kDataLoss;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(refused(Forged(bytes, 32, uint64_t{78})));  // the control: another step is as good
  for (uint32_t dim : {0u, 1u, 3u, 65537u, 0x80000000u, 0xFFFFFFFFu})
    EXPECT_TRUE(refused(Forged(bytes, 16, dim)));
  for (uint64_t n : {uint64_t{0}, uint64_t{4}, uint64_t{6}, uint64_t{1} << 32, uint64_t{1} << 59,
                     ~uint64_t{0} / 24, ~uint64_t{0} / 24 + 1, ~uint64_t{0}}) {
    EXPECT_TRUE(refused(Forged(bytes, 24, n))) << n;
  }
  EXPECT_TRUE(refused(Forged(bytes, 12, uint32_t{127})));
  for (uint32_t rows : {0u, 1u, 4095u}) EXPECT_TRUE(refused(Forged(bytes, 20, rows)));
  for (uint32_t kind : {0u, 3u, 4u, 99u, 0xFFFFFFFFu})
    EXPECT_TRUE(refused(Forged(bytes, 40, kind)));
  for (uint32_t slots : {0u, 2u, 0xFFFFFFFFu}) EXPECT_TRUE(refused(Forged(bytes, 44, slots)));
  EXPECT_TRUE(refused(Forged(bytes, 48, nan)));
  for (uint32_t kind : {5u, 0xFFFFFFFFu}) EXPECT_TRUE(refused(Forged(bytes, 64, kind)));
  EXPECT_TRUE(refused(Forged(bytes, 68, nan)));
  EXPECT_TRUE(refused(Forged(bytes, 76, uint32_t{1})));
  for (uint64_t size : {uint64_t{0}, ~uint64_t{0}}) EXPECT_TRUE(refused(Forged(bytes, 96, size)));
  EXPECT_TRUE(refused(Forged(bytes, 120, uint32_t{1})));
}

TEST_F(ParameterFile, SaysWhatIsWrongWithAFile) {
  const auto message = [&] { return ParameterFileReader::Open(path_).status(); };
  EXPECT_EQ(message().code(), Code::kNotFound);
  SetBytes(std::string(500, 'x'));
  EXPECT_NE(message().message().find("foreign"), std::string::npos);
  ASSERT_TRUE(Write(Info(OptimizerKind::kNone, 2, 5)).ok());
  SetBytes(Forged(Bytes(), 8, uint32_t{2}));
  EXPECT_EQ(message().code(), Code::kFailedPrecondition);
  EXPECT_NE(message().message().find("newer"), std::string::npos);
  unlink(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(message().code(), Code::kFailedPrecondition);  // and does not hang
}

TEST_F(ParameterFile, AnUnfinishedWriteLeavesNothing) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kNone, 2, 5)).ok());
  const std::string before = Bytes();
  {
    auto writer = ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, 2));
    ASSERT_TRUE(writer.ok());
    const int64_t key = 1;
    const float row = 1;
    ASSERT_TRUE((*writer)->Append(&key, &row, nullptr, 1).ok());
    EXPECT_EQ((*writer)->Finish().code(), Code::kFailedPrecondition);
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"table.tsps"});
  EXPECT_EQ(Bytes(), before);
}

TEST_F(ParameterFile, MoreRowsThanAnnouncedAreRefused) {
  auto writer = ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, 2));
  ASSERT_TRUE(writer.ok());
  const int64_t keys[] = {1, 2, 3};
  const float rows[] = {1, 2, 3};
  EXPECT_EQ((*writer)->Append(keys, rows, nullptr, 3).code(), Code::kInvalidArgument);
  ASSERT_TRUE((*writer)->Append(keys, rows, nullptr, 2).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ((*writer)->Finish().code(), Code::kFailedPrecondition);
  EXPECT_EQ((*writer)->Append(keys, rows, nullptr, 1).code(), Code::kInvalidArgument);
}

TEST_F(ParameterFile, IsPrivateAndNeverWrittenThroughASymlink) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kNone, 1, 2)).ok());
  struct stat file;
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  const std::string victim = folder_ + "/victim";
  ASSERT_EQ(rename(path_.c_str(), victim.c_str()), 0);
  ASSERT_EQ(symlink(victim.c_str(), path_.c_str()), 0);
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 1, 3)).code(), Code::kPermissionDenied);
  unlink(path_.c_str());
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 1, 3)).code(), Code::kFailedPrecondition);
  rmdir(path_.c_str());
}

TEST_F(ParameterFile, ImpossibleInfosAreRefusedBeforeAnyFileExists) {
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 0, 2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 65537, 2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, ~uint64_t{0}))
                .status()
                .code(),
            Code::kInvalidArgument);
  ParameterFileInfo bad = Info(OptimizerKind::kNone, 1, 2);
  bad.initializer.a = 9;  // above maxval
  EXPECT_EQ(Write(bad).code(), Code::kInvalidArgument);
  path_ = folder_ + "/missing/table.tsps";
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 1, 2)).code(), Code::kNotFound);
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace tsps
