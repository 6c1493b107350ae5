#include "core/files/parameter_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "tests/parameter_file_fixture.h"

namespace tsps {
namespace {

class ParameterFileTest : public ParameterFile {};

TEST_F(ParameterFileTest, GivesBackWhatWasWritten) {
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
        EXPECT_EQ(read.key_limit, int64_t{1} << 40);
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

TEST_F(ParameterFileTest, SlotsCanBeSkipped) {
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

TEST_F(ParameterFileTest, AnUnfinishedWriteLeavesNothing) {
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

TEST_F(ParameterFileTest, MoreRowsThanAnnouncedAreRefused) {
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
  auto first = ParameterFileWriter::Create(path_, info);
  ASSERT_TRUE(first.ok());
  const Status second = Write(info);
  EXPECT_EQ(second.code(), Code::kAborted);
  EXPECT_NE(second.message().find(path_), std::string::npos) << second.message();
  path_ += "2";
  EXPECT_TRUE(Write(info).ok()) << "another path is free";
  path_.pop_back();
  ASSERT_TRUE((*first)->Append(&key, &row, nullptr, 1).ok());
  ASSERT_TRUE((*first)->Finish().ok());
  EXPECT_TRUE(ParameterFileReader::Open(path_).ok());
  EXPECT_TRUE(Write(info).ok()) << "its writer is still there, but has finished";
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
  const Status all = ReadAll();
  EXPECT_TRUE(all.ok()) << all.message();
}

TEST_F(ParameterFileTest, AChildForkedMeanwhileDoesNotKeepThePath) {
  int wait[2];
  ASSERT_EQ(pipe(wait), 0);
  auto writer = ParameterFileWriter::Create(path_, Info(OptimizerKind::kNone, 1, 0));
  ASSERT_TRUE(writer.ok());
  const pid_t child = fork();
  if (child == 0) {
    char none;
    close(wait[1]);
    _exit(read(wait[0], &none, 1) == 0 ? 0 : 1);
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
  path_ = folder_ + "/missing/table.tsps";
  EXPECT_EQ(Write(Info(OptimizerKind::kNone, 1, 2)).code(), Code::kNotFound);
  EXPECT_TRUE(Names().empty());
}

}  // namespace
}  // namespace tsps
