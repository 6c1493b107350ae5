// Parameter files that are damaged, truncated, foreign or forged are refused.
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
  ASSERT_TRUE(Write(WithMetadata(Info(OptimizerKind::kAdagrad, 2, 5))).ok());
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
        status = ReadRows(**reader, 0, keys.data(), rows.data());
        EXPECT_NE(status.message().find("block 0"), std::string::npos);
      }
      EXPECT_EQ(status.code(), Code::kDataLoss) << "byte " << i;
      EXPECT_NE(status.message().find(path_), std::string::npos);
    }
  }
}

TEST_F(ParameterFileDamage, IsRefusedAtEveryOtherLength) {
  ASSERT_TRUE(Write(WithMetadata(Info(OptimizerKind::kAdagrad, 2, 5))).ok());
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
    EXPECT_EQ(ReadRows(**reader, block, keys.data(), rows.data()).code(), Code::kDataLoss);
  }
}

TEST_F(ParameterFileDamage, HostileHeadersWithGoodChecksumsAreRefused) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kAdagrad, 2, 5)).ok());
  const std::string bytes = Bytes();
  const auto refused = [&](const std::string& forged) {
    SetBytes(forged);
    return ParameterFileReader::Open(path_).status().code() == Code::kDataLoss;
  };
  EXPECT_FALSE(refused(Forged(bytes, 32, uint64_t{78})));  // the control: another step is valid
  for (uint32_t dim : {0u, 1u, 3u, 65537u, 0x80000000u, 0xFFFFFFFFu})
    EXPECT_TRUE(refused(Forged(bytes, 16, dim)));
  for (uint64_t n : {uint64_t{0}, uint64_t{4}, uint64_t{6}, uint64_t{1} << 32, uint64_t{1} << 59,
                     ~uint64_t{0} / 24, ~uint64_t{0} / 24 + 1, ~uint64_t{0}}) {
    EXPECT_TRUE(refused(Forged(bytes, 24, n))) << n;
  }
  for (uint32_t size : {0u, 127u, 128u, 255u, 320u, 0xFFFFFFFFu})
    EXPECT_TRUE(refused(Forged(bytes, 12, size)));
  for (uint32_t rows : {0u, 1u, 4095u}) EXPECT_TRUE(refused(Forged(bytes, 20, rows)));
  for (uint32_t kind : {0u, 3u, 4u, 99u, 0xFFFFFFFFu})
    EXPECT_TRUE(refused(Forged(bytes, 40, kind)));
  for (uint32_t planes : {0u, 1u, 3u, 0xFFFFFFFFu}) EXPECT_TRUE(refused(Forged(bytes, 44, planes)));
  for (size_t offset : {48, 60}) {  // fields that version 2 does not have
    EXPECT_TRUE(refused(Forged(Forged(bytes, 8, uint32_t{2}), offset, 0.1f)));
  }
  for (uint32_t kind : {5u, 0xFFFFFFFFu}) EXPECT_TRUE(refused(Forged(bytes, 64, kind)));
  EXPECT_TRUE(refused(Forged(bytes, 68, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(refused(Forged(bytes, 76, uint32_t{1})));
  for (uint64_t size : {uint64_t{0}, ~uint64_t{0}}) EXPECT_TRUE(refused(Forged(bytes, 96, size)));
  EXPECT_TRUE(refused(Forged(bytes, 104, int64_t{-1})));
  for (size_t offset : {112, 116, 120}) EXPECT_TRUE(refused(Forged(bytes, offset, uint32_t{1})));
  EXPECT_TRUE(refused(Forged(Forged(bytes, 116, uint32_t{3}), 120, uint32_t{3})));
}

TEST_F(ParameterFileDamage, HostileListsOfPlanesWithGoodChecksumsAreRefused) {
  // embedding at 128, accumulator at 192, count at 256, last_used at 320, scales at 384.
  ASSERT_TRUE(Write(WithMetadata(Info(OptimizerKind::kAdagrad, 2, 5))).ok());
  const std::string bytes = Bytes();
  const auto refused = [&](const std::string& forged) {
    SetBytes(forged);
    return ParameterFileReader::Open(path_).status().code() == Code::kDataLoss;
  };
  EXPECT_FALSE(refused(Forged(bytes, 256, 'a')));  // the control: the name 'aount' is valid
  EXPECT_FALSE(refused(Forged(bytes, 256 + 48, uint64_t{8})));  // another initial value
  EXPECT_FALSE(refused(Forged(bytes, 192 + 48, uint32_t{0})));  // that of a slot, too
  for (size_t plane : {128, 192, 256, 320, 384}) {
    for (char letter : {'\0', 'A', '/', '\xFF'}) EXPECT_TRUE(refused(Forged(bytes, plane, letter)));
    EXPECT_TRUE(refused(Forged(bytes, plane + 30, 'a'))) << "after the zero that ends the name";
    EXPECT_TRUE(refused(Forged(bytes, plane + 31, 'a')));
    for (uint32_t role : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 0xFFFFFFFFu}) {
      uint32_t true_role = 0;
      std::memcpy(&true_role, &bytes[plane + 32], sizeof(true_role));
      EXPECT_EQ(refused(Forged(bytes, plane + 32, role)), role != true_role)
          << plane << " " << role;
    }
    for (uint32_t type : {0u, 6u, 0xFFFFFFFFu}) {
      EXPECT_TRUE(refused(Forged(bytes, plane + 36, type))) << plane << " " << type;
    }
    for (uint32_t width : {0u, 1u, 7u, 16u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
      EXPECT_TRUE(refused(Forged(bytes, plane + 40, width))) << plane << " " << width;
    }
    EXPECT_TRUE(refused(Forged(bytes, plane + 44, uint32_t{1})));
    EXPECT_TRUE(refused(Forged(bytes, plane + 56, uint64_t{1})));
  }
  for (size_t plane : {128, 192}) {  // these planes must be floats
    for (uint32_t type = 2; type <= 5; ++type) {
      EXPECT_TRUE(refused(Forged(bytes, plane + 36, type)));
    }
  }
  EXPECT_TRUE(refused(Forged(bytes, 128 + 48, uint64_t{1}))) << "an embedding has no initial bits";
  EXPECT_TRUE(refused(Forged(bytes, 192 + 48, std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(refused(Forged(bytes, 192 + 52, uint32_t{1}))) << "more bits than a float has";
  EXPECT_TRUE(refused(Forged(bytes, 256 + 52, uint32_t{1})));
  std::string twice = bytes;
  std::memcpy(&twice[320], "count\0\0\0\0\0", 10);
  EXPECT_TRUE(refused(Forged(twice, 320, 'c')));
}

TEST_F(ParameterFileDamage, SaysWhatIsWrongWithAFile) {
  const auto message = [&] { return ParameterFileReader::Open(path_).status(); };
  EXPECT_EQ(message().code(), Code::kNotFound);
  SetBytes(std::string(500, 'x'));
  EXPECT_NE(message().message().find("foreign"), std::string::npos);
  ASSERT_TRUE(Write(Info(OptimizerKind::kNone, 2, 5)).ok());
  SetBytes(Forged(Bytes(), 8, uint32_t{4}));
  EXPECT_EQ(message().code(), Code::kFailedPrecondition);
  EXPECT_NE(message().message().find("newer"), std::string::npos);
  unlink(path_.c_str());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(message().code(), Code::kFailedPrecondition);  // and does not hang
}

}  // namespace
}  // namespace tsps
