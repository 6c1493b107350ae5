#include "core/os/direct_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr size_t kMost = 10'000;

// Writes `bytes` in pieces to a file that already begins with `before`.
Status Write(const std::string& path, const std::string& before, const std::string& bytes,
             size_t piece) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(write(fd, before.data(), before.size()), static_cast<ssize_t>(before.size()));
  DirectWriter writer(fd, path, kMost);
  Status status;
  for (size_t at = 0; at < bytes.size() && status.ok(); at += piece) {
    const size_t n = std::min(piece, bytes.size() - at);
    std::memcpy(writer.Add(n), bytes.data() + at, n);
    if (writer.full()) status = writer.Write();
  }
  if (status.ok()) status = writer.Finish();
  EXPECT_EQ(fcntl(fd, F_GETFL) & O_DIRECT, 0);  // later writes may have any size
  close(fd);
  return status;
}

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string Bytes(size_t n) {
  std::string bytes(n, 0);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 31 + i / 4096);
  return bytes;
}

// A file of this process on the disk; those in TempDir are in shared memory.
std::string OnDisk() {
  return ::testing::TempDir() + "direct_writer_test-" + std::to_string(getpid());
}

TEST(DirectWriter, WritesWhatWasAdded) {
  const TempDir dir;
  for (const std::string& path : {dir / "file", OnDisk()}) {
    for (const size_t n : {0, 1, 4096, 2 << 20, (2 << 20) + 1, 9'000'000}) {
      for (const size_t piece : {4096, 9'999}) {
        const std::string bytes = Bytes(n);
        const Status status = Write(path, "", bytes, piece);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(Read(path) == bytes) << n << " in pieces of " << piece;
      }
    }
  }
  unlink(OnDisk().c_str());
}

TEST(DirectWriter, WritesThroughTheCacheWhereItMust) {
  const std::string bytes = Bytes(5'000'000);
  const Status status = Write(OnDisk(), "x", bytes, 5000);  // no direct write begins at byte 1
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(Read(OnDisk()) == "x" + bytes);
  unlink(OnDisk().c_str());
}

TEST(DirectWriter, SaysThatTheDiskIsFull) {
  const int fd = open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  DirectWriter writer(fd, "it", kMost);
  std::memset(writer.Add(kMost), 0, kMost);
  const Status status = writer.Finish();
  close(fd);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("cannot write it"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tsps
