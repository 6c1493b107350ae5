#include "core/files/parameter_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/base/crc32.h"
#include "tests/parameter_file_fixture.h"

namespace tsps {
namespace {

class ParameterFileTest : public ParameterFile {};

TEST_F(ParameterFileTest, GivesBackWhatWasWritten) {
  for (OptimizerKind kind : {OptimizerKind::kNone, OptimizerKind::kSgd, OptimizerKind::kAdagrad,
                             OptimizerKind::kAdam, OptimizerKind::kRowWiseAdagrad}) {
    for (uint32_t dim : {1, 17}) {
      for (uint64_t n : {0, 1, 4095, 4096, 4097, 9000}) {
        ParameterFileInfo info = Info(kind, dim, n);
        if (n != 4096) info = WithMetadata(info);
        ASSERT_TRUE(Write(info).ok());
        const auto reader = ParameterFileReader::Open(path_);
        ASSERT_TRUE(reader.ok()) << reader.status().message();
        const ParameterFileInfo& read = (*reader)->info();
        EXPECT_EQ(read.dim, dim);
        EXPECT_EQ(read.n_rows, n);
        EXPECT_EQ(read.step, 77u);
        EXPECT_EQ(read.key_limit, int64_t{1} << 40);
        EXPECT_EQ(read.optimizer.kind, kind);
        EXPECT_EQ(read.optimizer.slot_init[0], info.optimizer.slot_init[0]);
        EXPECT_EQ(read.initializer.kind, InitializerKind::kUniform);
        EXPECT_EQ(read.initializer.a, -0.5f);
        EXPECT_EQ(read.initializer.b, 0.25f);
        EXPECT_EQ(read.initializer.seed, 1234567890123u);
        EXPECT_EQ(read.initializer.salt, 42u);
        ASSERT_EQ(read.metadata.size(), info.metadata.size());
        for (size_t p = 0; p < read.metadata.size(); ++p) {
          EXPECT_EQ(read.metadata[p].name, info.metadata[p].name);
          EXPECT_EQ(read.metadata[p].type, info.metadata[p].type);
          EXPECT_EQ(read.metadata[p].elements, info.metadata[p].elements);
          EXPECT_EQ(read.metadata[p].initial, info.metadata[p].initial);
        }
        EXPECT_EQ((*reader)->n_blocks(), (n + 4095) / 4096);
        const Status status = ReadAll();
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(Names(), std::vector<std::string>{"table.tsps"});
      }
    }
  }
}

TEST_F(ParameterFileTest, AFileWhoseRowsAreCountedIsTheSame) {
  for (uint64_t n : {0, 1, 4096, 4097, 9000}) {
    const ParameterFileInfo info = WithMetadata(Info(OptimizerKind::kAdagrad, 17, n));
    ASSERT_TRUE(Write(info).ok());
    const std::string announced = Bytes();
    ASSERT_TRUE(Write(info, true).ok());
    EXPECT_TRUE(Bytes() == announced) << n;
    const Status status = ReadAll();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(ParameterFileTest, AWriterKnowsTheChecksumsOfItsFile) {
  for (uint64_t n : {0, 1, 4096, 9000}) {  // up to 7 MB
    const ParameterFileInfo info = WithMetadata(Info(OptimizerKind::kAdagrad, 97, n));
    for (const bool counted : {false, true}) {
      ParameterFileChecksums checksums;
      ASSERT_TRUE(Write(info, counted, &checksums).ok());
      const std::string bytes = Bytes();
      EXPECT_EQ(checksums.file, Crc32(0, bytes.data(), bytes.size()));
      const auto reader = ParameterFileReader::Open(path_);
      ASSERT_TRUE(reader.ok());
      uint32_t blocks = 0;
      for (size_t block = 0; block < (*reader)->n_blocks(); ++block) {
        const uint32_t checksum = *(*reader)->BlockChecksum(block);
        blocks = Crc32(blocks, &checksum, sizeof(checksum));
      }
      EXPECT_EQ(checksums.blocks, blocks);
    }
  }
}

TEST_F(ParameterFileTest, APlaneTakesItsOwnWidthInARecord) {
  const auto record_bytes = [&](const ParameterFileInfo& info) -> size_t {
    EXPECT_TRUE(Write(info).ok());
    return Bytes().size() - 128 - 64 * PlanesOf(info).size() - 8;
  };
  EXPECT_EQ(record_bytes(Info(OptimizerKind::kAdagrad, 8, 1)), 8 + 32 + 32u);
  EXPECT_EQ(record_bytes(Info(OptimizerKind::kRowWiseAdagrad, 8, 1)), 8 + 32 + 4 + 4u);
  EXPECT_EQ(record_bytes(WithMetadata(Info(OptimizerKind::kRowWiseAdagrad, 8, 1))),
            8 + 32 + 4 + 4 + 8 + 6 + 2u);
}

// A file of version 1, field by field, as its writer laid it out: rows of 2 floats, one slot.
std::string FileOfVersion1(uint64_t n_rows) {
  std::string bytes;
  const auto put = [&](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  bytes.append("\xF4TSPS\r\n\x1A", 8);
  for (uint32_t field : {1u, 128u, 2u, 4096u}) put(field);
  put(n_rows);
  put(uint64_t{77});
  for (uint32_t field : {2u, 1u}) put(field);  // Adagrad, 1 slot
  for (float start : {0.1f, 0.0f, 0.0f, 0.0f}) put(start);
  put(uint32_t{2});
  for (float argument : {-0.5f, 0.25f}) put(argument);
  put(uint32_t{0});
  for (uint64_t field : {uint64_t{1234567890123}, uint64_t{42}, 128 + n_rows * 24 + 8}) put(field);
  put(int64_t{1} << 40);
  for (int i = 0; i < 3; ++i) put(uint32_t{0});
  put(Crc32c(0, bytes.data(), bytes.size()));
  for (size_t i = 0; i < n_rows; ++i) {
    put(static_cast<int64_t>(i) * 1000003 - 5);
    for (size_t field = 0; field < 2; ++field) {
      for (size_t d = 0; d < 2; ++d) {
        put(static_cast<float>(i * 7 + d) + 0.25f * static_cast<float>(field));
      }
    }
  }
  put(Crc32c(0, bytes.data() + 128, bytes.size() - 128));
  put(uint32_t{0});
  return bytes;
}

TEST_F(ParameterFileTest, AFileOfVersion1IsRead) {
  SetBytes(FileOfVersion1(5));
  const auto reader = ParameterFileReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->info().optimizer.kind, OptimizerKind::kAdagrad);
  EXPECT_EQ((*reader)->info().optimizer.slot_init[0], 0.1f);
  EXPECT_TRUE((*reader)->info().metadata.empty());
  EXPECT_EQ((*reader)->info().n_rows, 5u);
  const Status status = ReadAll();
  EXPECT_TRUE(status.ok()) << status.message();
  for (const size_t n : {127, 130, 200, 255}) {  // the file is refused at any other length
    SetBytes(FileOfVersion1(5).substr(0, n));
    EXPECT_NE(ParameterFileReader::Open(path_).status().message().find("truncated"),
              std::string::npos);
  }
}

TEST_F(ParameterFileTest, AFileOfVersion1HasWhatVersion1Had) {
  const std::string bytes = FileOfVersion1(5);
  const auto refused = [&](const std::string& forged) {
    SetBytes(forged);
    return ParameterFileReader::Open(path_).status().code() == Code::kDataLoss;
  };
  EXPECT_FALSE(refused(Forged(bytes, 32, uint64_t{78})));
  EXPECT_TRUE(refused(Forged(bytes, 8, uint32_t{2}))) << "version 2 needs a list of planes";
  EXPECT_TRUE(refused(Forged(bytes, 8, uint32_t{0})));
  EXPECT_TRUE(refused(Forged(bytes, 12, uint32_t{192})));
  EXPECT_TRUE(refused(Forged(bytes, 40, uint32_t{4}))) << "version 1 does not have this optimizer";
  for (uint32_t slots : {0u, 2u}) EXPECT_TRUE(refused(Forged(bytes, 44, slots)));
  EXPECT_TRUE(refused(Forged(bytes, 60, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(refused(Forged(bytes, 112, uint32_t{1})));
}

TEST_F(ParameterFileTest, AFileOfAShardSaysOfWhich) {
  ParameterFileInfo info = Info(OptimizerKind::kAdagrad, 3, 10);
  info.shard = {4, 5};
  ASSERT_TRUE(Write(info).ok());
  const auto reader = ParameterFileReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->info().shard.node, 4u);
  EXPECT_EQ((*reader)->info().shard.nodes, 5u);
  info.shard = {5, 5};
  EXPECT_EQ(Write(info).code(), Code::kInvalidArgument);
}

TEST_F(ParameterFileTest, SlotsCanBeSkipped) {
  ASSERT_TRUE(Write(WithMetadata(Info(OptimizerKind::kAdam, 3, 10))).ok());
  const auto reader = ParameterFileReader::Open(path_);
  ASSERT_TRUE(reader.ok());
  std::vector<int64_t> keys(10);
  std::vector<float> rows(30);
  ASSERT_TRUE(ReadRows(**reader, 0, keys.data(), rows.data()).ok());
  EXPECT_EQ(keys[9], Key(9));
  EXPECT_EQ(rows[29], Value(9, 2, 0));
  EXPECT_EQ(ReadRows(**reader, 1, keys.data(), rows.data()).code(), Code::kOutOfRange);
}

TEST_F(ParameterFileTest, AnUnfinishedWriteLeavesNothing) {
  ASSERT_TRUE(Write(Info(OptimizerKind::kNone, 2, 5)).ok());
  const std::string before = Bytes();
  {
    auto writer = ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, 2));
    ASSERT_TRUE(writer.ok());
    const int64_t key = 1;
    const float row = 1;
    const void* const values[] = {&row};
    ASSERT_TRUE((*writer)->Append(&key, values, 1).ok());
    EXPECT_EQ((*writer)->Finish().code(), Code::kFailedPrecondition);
  }
  EXPECT_EQ(Names(), std::vector<std::string>{"table.tsps"});
  EXPECT_EQ(Bytes(), before);
}

TEST_F(ParameterFileTest, MoreRowsThanAnnouncedAreRefused) {
  auto writer = ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, 2));
  ASSERT_TRUE(writer.ok());
  const int64_t keys[] = {1, 2, 3};
  const float rows[] = {1, 2, 3};
  const void* const values[] = {rows};
  EXPECT_EQ((*writer)->Append(keys, values, 3).code(), Code::kInvalidArgument);
  ASSERT_TRUE((*writer)->Append(keys, values, 2).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ((*writer)->Finish().code(), Code::kFailedPrecondition);
  EXPECT_EQ((*writer)->Append(keys, values, 1).code(), Code::kInvalidArgument);
}

TEST_F(ParameterFileTest, IsPrivateAndNeverWrittenThroughASymlink) {
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

TEST_F(ParameterFileTest, ASecondWriterOfAPathIsRefusedAndTheFirstsFileIsWhole) {
  const ParameterFileInfo info = Info(OptimizerKind::kNone, 1, 1);
  const int64_t key = 1;
  const float row = 1;
  const void* const values[] = {&row};
  auto first = ParameterFileWriter::Create(path_, info);
  ASSERT_TRUE(first.ok());
  const Status second = Write(info);
  EXPECT_EQ(second.code(), Code::kAborted);
  EXPECT_NE(second.message().find(path_), std::string::npos) << second.message();
  path_ += "2";
  EXPECT_TRUE(Write(info).ok()) << "another path is free";
  path_.pop_back();
  ASSERT_TRUE((*first)->Append(&key, values, 1).ok());
  ASSERT_TRUE((*first)->Finish().ok());
  EXPECT_TRUE(ParameterFileReader::Open(path_).ok());
  EXPECT_TRUE(Write(info).ok()) << "its writer still exists, but has finished";
}

TEST_F(ParameterFileTest, AKilledWritersFileIsTakenOver) {
  const ParameterFileInfo info = Info(OptimizerKind::kNone, 3, 100);
  const pid_t child = fork();
  if (child == 0) {
    auto writer = ParameterFileWriter::Create(path_, info);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(Names(), std::vector<std::string>{".table.tsps.partial"});
  const Status written = Write(info);
  EXPECT_TRUE(written.ok()) << written.message();
  EXPECT_EQ(Names(), std::vector<std::string>{"table.tsps"});
  const Status read = ReadAll();
  EXPECT_TRUE(read.ok()) << read.message();
}

TEST_F(ParameterFileTest, AChildForkedMeanwhileDoesNotKeepThePath) {
  int wait[2];
  ASSERT_EQ(pipe(wait), 0);
  auto writer = ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, 0));
  ASSERT_TRUE(writer.ok());
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(wait[1]);
    _exit(read(wait[0], &byte, 1) == 0 ? 0 : 1);
  }
  writer->reset();
  EXPECT_TRUE(Write(Info(OptimizerKind::kNone, 1, 1)).ok());
  close(wait[0]);
  close(wait[1]);
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(ParameterFileTest, WhatIsInTheWayOfThePartialFileIsLeftAlone) {
  const std::string partial = folder_ + "/.table.tsps.partial", victim = folder_ + "/victim";
  std::ofstream(victim) << "mine";
  ASSERT_EQ(link(victim.c_str(), partial.c_str()), 0);
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 1, 1)).code(), Code::kPermissionDenied);
  unlink(partial.c_str());
  ASSERT_EQ(symlink(victim.c_str(), partial.c_str()), 0);
  EXPECT_FALSE(Write(Info(OptimizerKind::kNone, 1, 1)).ok());
  std::string content;
  std::ifstream(victim) >> content;
  EXPECT_EQ(content, "mine");
}

TEST_F(ParameterFileTest, ImpossibleInfosAreRefusedBeforeAnyFileExists) {
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 0, 2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 65537, 2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, ~uint64_t{0}))
                .status()
                .code(),
            Code::kInvalidArgument);
  ParameterFileInfo bad = Info(OptimizerKind::kNone, 1, 2);
  bad.initializer.a = 9;  // above maxval
  EXPECT_EQ(Write(bad).code(), Code::kInvalidArgument);
  for (const MetadataPlane& plane :
       std::vector<MetadataPlane>{{"embedding"},
                                  {"Count"},
                                  {"none", PlaneType::kUint32, 0},
                                  {"half", PlaneType::kFloat16, 1, 0x10000}}) {
    bad = Info(OptimizerKind::kNone, 1, 2);
    bad.metadata = {plane};
    EXPECT_EQ(Write(bad).code(), Code::kInvalidArgument) << plane.name;
  }
  path_ = folder_ + "/missing/table.tsps";
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 1, 2)).code(), Code::kNotFound);
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace tsps
