#include "core/os/storage_budget.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/os/mapped_file.h"
#include "tests/temp_dir.h"

namespace {
std::atomic<int> fallocate_error{0};
}

// Replaces the function of libc, so that a test can make a reservation fail.
extern "C" int posix_fallocate(int fd, off_t offset, off_t size) {
  if (fallocate_error != 0) return fallocate_error;
  return fallocate(fd, 0, offset, size) == 0 ? 0 : errno;
}

namespace tsps {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(dir_ / path).parent_path());
    std::ofstream(dir_ / path) << content << "\n";
  }
  uint64_t Headroom() { return CgroupHeadroom(dir_ / "proc", dir_ / "cg"); }
  TempDir dir_;
};

TEST_F(CgroupTest, NoCgroupIsNoLimit) { EXPECT_EQ(Headroom(), UINT64_MAX); }

TEST_F(CgroupTest, TheTightestAncestorCounts) {
  Write("proc", "0::/a/b");
  Write("cg/a/b/memory.max", "max");
  Write("cg/a/memory.max", "1000");
  Write("cg/a/memory.current", "400");
  Write("cg/memory.max", "5000");
  Write("cg/memory.current", "100");
  EXPECT_EQ(Headroom(), 600u);
}

TEST_F(CgroupTest, DroppablePageCacheIsFree) {
  Write("proc", "0::/a");
  Write("cg/a/memory.max", "1000");
  Write("cg/a/memory.current", "900");
  Write("cg/a/memory.stat", "anon 100\ninactive_file 300\nactive_file 200\nshmem 300");
  EXPECT_EQ(Headroom(), 600u);
}

TEST_F(CgroupTest, VersionOneIsRead) {
  Write("proc", "12:cpu,cpuacct:/x\n4:memory:/job");
  Write("cg/memory/job/memory.limit_in_bytes", "2000");
  Write("cg/memory/job/memory.usage_in_bytes", "500");
  Write("cg/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("cg/memory/memory.usage_in_bytes", "1");
  EXPECT_EQ(Headroom(), 1500u);
}

TEST_F(CgroupTest, AFullCgroupHasNoHeadroom) {
  Write("proc", "0::/a");
  Write("cg/a/memory.max", "1000");
  Write("cg/a/memory.current", "2000");
  EXPECT_EQ(Headroom(), 0u);
}

TEST(StorageBudget, MoreThanTheFileSystemHasIsRefusedBeforeAnythingIsTouched) {
  TempDir dir;
  auto file = MappedFile::Create(dir / "f", 4096, size_t{1} << 40);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Status status = (*file)->Reserve(size_t{1} << 39);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("the file system has"), std::string::npos) << status.message();
  EXPECT_EQ((*file)->size(), 4096u);
}

TEST(StorageBudget, RoomThatSomebodyElseTookAfterTheCheckIsTheSameError) {
  TempDir dir;
  auto file = MappedFile::Create(dir / "f", 4096, size_t{1} << 30);
  ASSERT_TRUE(file.ok()) << file.status().message();
  fallocate_error = ENOSPC;
  const Status status = (*file)->Reserve(12288);
  fallocate_error = 0;
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  const std::string expected =
      "no space for " + (dir / "f") + ": it needs 8192 more bytes, and the file system has ";
  EXPECT_EQ(status.message().substr(0, expected.size()), expected);
  EXPECT_EQ((*file)->size(), 4096u);
  EXPECT_TRUE((*file)->Reserve(12288).ok());
}

}  // namespace
}  // namespace tsps
