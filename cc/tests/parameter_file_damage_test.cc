// What a reader does with files that are damaged, truncated, foreign or forged.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/parameter_file_fixture.h"

namespace tsps {
namespace {

class ParameterFileDamage : public ParameterFile {};

TEST_F(ParameterFileDamage, IsRefusedWithAnyByteOfItChanged) {
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

TEST_F(ParameterFileDamage, IsRefusedAtEveryOtherLength) {
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

TEST_F(ParameterFileDamage, TruncatedWhileOpenIsAnErrorNotACrash) {
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

TEST_F(ParameterFileDamage, HostileHeadersWithGoodChecksumsAreRefused) {
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
  EXPECT_TRUE(refused(Forged(bytes, 104, int64_t{-1})));
  EXPECT_TRUE(refused(Forged(bytes, 120, uint32_t{1})));
}

TEST_F(ParameterFileDamage, SaysWhatIsWrongWithAFile) {
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

}  // namespace
}  // namespace tsps
