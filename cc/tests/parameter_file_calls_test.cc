// The system calls of the writer of a parameter file: their order, and the state of the file after
// the system refuses a call, or does less than it was asked for.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/parameter_file_fixture.h"

namespace {

// How a test answers a call. kDo: the call is made; kHalf: it writes half of the bytes; kNothing:
// it writes none, and returns 0; kLose: it writes none, and returns success; an errno: it fails
// with it.
constexpr int kDo = 0, kHalf = -1, kNothing = -2, kLose = -3;

struct Calls {
  std::vector<std::string> names;
  std::function<int(const std::string& name, size_t number)> answer;  // number: of this name

  int Next(const std::string& name) {
    size_t number = 0;
    for (const std::string& earlier : names) number += earlier == name;
    names.push_back(name);
    return answer ? answer(name, number) : kDo;
  }
};
Calls* calls = nullptr;  // of the running test

ssize_t Put(int fd, const void* data, size_t n, int wanted) {
  if (wanted > 0) {
    errno = wanted;
    return -1;
  }
  if (wanted == kNothing) return 0;
  if (wanted == kLose) return static_cast<ssize_t>(n);
  return syscall(SYS_write, fd, data, wanted == kHalf ? n / 8192 * 4096 : n);
}

}  // namespace

// These functions replace those of libc.
extern "C" ssize_t write(int fd, const void* data, size_t n) {
  const bool direct = calls != nullptr && (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
  return Put(fd, data, n, calls == nullptr ? kDo : calls->Next(direct ? "direct write" : "write"));
}

extern "C" int fsync(int fd) {
  const int wanted = calls == nullptr ? kDo : calls->Next("fsync");
  if (wanted == kDo) return static_cast<int>(syscall(SYS_fsync, fd));
  errno = wanted;
  return -1;
}

extern "C" int rename(const char* from, const char* to) {
  const int wanted = calls == nullptr ? kDo : calls->Next("rename");
  if (wanted == kDo) return static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  errno = wanted;
  return -1;
}

namespace tsps {
namespace {

class ParameterFileCalls : public ParameterFile {
 protected:
  // The file has 4.2 MB: two writes of 2 MiB, and one more.
  static constexpr uint64_t kRows = 8000;

  void SetUp() override {
    ParameterFile::SetUp();
    info_ = Info(OptimizerKind::kAdagrad, 64, kRows);
    const int fd = open((folder_ + "/try").c_str(), O_WRONLY | O_CREAT | O_DIRECT, 0600);
    has_direct_ = fd >= 0;
    if (fd >= 0) close(fd);
    unlink((folder_ + "/try").c_str());
  }
  void TearDown() override {
    calls = nullptr;
    ParameterFile::TearDown();
  }

  // Writes the file, while `answer` decides how the calls end.
  Status WriteWith(std::function<int(const std::string&, size_t)> answer, bool counted = false) {
    calls_ = {{}, std::move(answer)};
    calls = &calls_;
    Status status = Write(info_, counted);
    calls = nullptr;
    return status;
  }
  void ExpectNothingIsLeft(const Status& status, Code code) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(Names(), std::vector<std::string>());
  }

  ParameterFileInfo info_;
  bool has_direct_ = false;
  Calls calls_;
};

TEST_F(ParameterFileCalls, BytesAreOnTheDiskBeforeTheNameIs) {
  for (const bool counted : {false, true}) {
    const Status status = WriteWith(nullptr, counted);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<std::string> expected = {"write", "write", "fsync", "rename", "fsync"};
    if (has_direct_) {
      expected = {"direct write", "direct write", "write", "fsync", "rename", "fsync"};
    }
    EXPECT_EQ(calls_.names, expected);
    EXPECT_TRUE(ReadAll().ok());
  }
}

TEST_F(ParameterFileCalls, AnErrorOfAnyWriteLeavesNothing) {
  for (const std::string name : {"direct write", "write"}) {
    for (size_t at = 0; at < 2 && (name == "write" || has_direct_); ++at) {
      const auto fails = [&](int error) {
        return WriteWith([&, error](const std::string& call, size_t number) {
          return call == name && (number == at || name == "write") ? error : kDo;
        });
      };
      ExpectNothingIsLeft(fails(ENOSPC), Code::kResourceExhausted);
      ExpectNothingIsLeft(fails(EIO), Code::kDataLoss);
      ExpectNothingIsLeft(fails(kNothing), Code::kResourceExhausted);
    }
  }
}

TEST_F(ParameterFileCalls, AFileThatIsNotOnTheDiskGetsNoName) {
  const auto fails = [](const char* name, int error) {
    return [=](const std::string& call, size_t number) {
      return call == name && number == 0 ? error : kDo;
    };
  };
  ExpectNothingIsLeft(WriteWith(fails("fsync", EIO)), Code::kDataLoss);
  EXPECT_EQ(calls_.names.back(), "fsync");
  ExpectNothingIsLeft(WriteWith(fails("rename", EACCES)), Code::kPermissionDenied);
}

TEST_F(ParameterFileCalls, AWriterThatHasFailedSaysSoAgain) {
  for (const std::string name : {"direct write", "write", "fsync", "rename"}) {
    if (name == "direct write" && !has_direct_) continue;
    auto created = ParameterFileWriter::Create(path_, info_, true);
    ASSERT_TRUE(created.ok()) << created.status().message();
    ParameterFileWriter& writer = **created;
    const std::vector<std::string> values = Values(info_, 0, 1000);
    std::vector<const void*> data;
    for (const std::string& plane : values) data.push_back(plane.data());
    const std::vector<int64_t> keys(1000, 1);
    calls_ = {{}, [&](const std::string& call, size_t number) {
                return call == name && number == 0 ? EIO : kDo;
              }};
    calls = &calls_;
    Status first;
    for (int i = 0; i < 9 && first.ok(); ++i) first = writer.Append(keys.data(), data.data(), 1000);
    if (first.ok()) first = writer.Finish();
    EXPECT_EQ(first.code(), Code::kDataLoss) << name;
    const size_t n_calls = calls_.names.size();
    for (int i = 0; i < 9; ++i) {
      EXPECT_EQ(writer.Append(keys.data(), data.data(), 1000).message(), first.message());
      EXPECT_EQ(writer.Finish().message(), first.message());
    }
    EXPECT_EQ(calls_.names.size(), n_calls) << "the failed writer has made more calls";
    calls = nullptr;
  }
  EXPECT_EQ(Names(), std::vector<std::string>());
}

TEST_F(ParameterFileCalls, WhatIsWrittenInPiecesOrOtherwiseIsTheSame) {
  ASSERT_TRUE(Write(info_).ok());
  const std::string expected = Bytes();
  for (const int answer : {kHalf, EINTR, EINVAL, EOPNOTSUPP}) {
    for (const size_t at : {0, 1}) {
      const std::string name = has_direct_ ? "direct write" : "write";
      if (!has_direct_ && answer > 0 && answer != EINTR) continue;
      const Status status = WriteWith([&](const std::string& call, size_t number) {
        return call == name && number == at ? answer : kDo;
      });
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(Bytes() == expected) << answer << " at " << at;
      if (answer == kHalf || answer == EINTR) {
        EXPECT_EQ(calls_.names.size(), 7u) << "more than the missing part was written";
      } else {
        const auto n_direct = std::count(calls_.names.begin(), calls_.names.end(), name);
        EXPECT_EQ(n_direct, static_cast<ptrdiff_t>(at) + 1) << "a direct write was tried again";
      }
    }
  }
}

TEST_F(ParameterFileCalls, AFileWhoseEndIsLostGetsNoName) {
  ExpectNothingIsLeft(
      WriteWith([](const std::string& call, size_t) { return call == "write" ? kLose : kDo; }),
      Code::kDataLoss);
}

}  // namespace
}  // namespace tsps
