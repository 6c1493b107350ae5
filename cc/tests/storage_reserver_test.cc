#include "core/os/storage_reserver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "tests/in_a_child.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr size_t kBytes = 1u << 20;

bool IsMapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) return true;
  }
  return false;
}

// Whether the condition becomes true within 10 s.
template <typename Condition>
bool Becomes(const Condition& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) usleep(10'000);
  return condition();
}

class StorageReserverTest : public ::testing::Test {
 protected:
  std::unique_ptr<MappedFile> Make(const std::string& name) {
    auto file = MappedFile::Create(dir_ / name, 0, 64 * kBytes);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return std::move(*file);
  }
  TempDir dir_;
};

TEST_F(StorageReserverTest, TheHelperReservesMoreThanIsUsed) {
  const auto file = Make("file");
  StorageReserver reserver;
  ASSERT_TRUE(reserver.Ensure(*file, kBytes).ok());
  EXPECT_GE(file->size(), kBytes);
  EXPECT_TRUE(Becomes([&] { return file->size() >= kBytes + kBytes / 4; })) << file->size();
}

// Bytes of a mapping that are in huge pages.
size_t HugeBytes(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) inside = true;
    if (inside && line.rfind("ShmemPmdMapped:", 0) == 0) return std::stoul(line.substr(15)) << 10;
  }
  return 0;
}

bool CanCollapse() {
  TempDir dir;
  const auto file = MappedFile::Create(dir / "file", 64 * kBytes, 64 * kBytes);
  return file.ok() && (*file)->CollapseNext() && HugeBytes(dir / "file") > 0;
}

TEST_F(StorageReserverTest, TheHelperPutsLargeFilesIntoHugePages) {
  if (!CanCollapse()) GTEST_SKIP() << "no huge pages of shared memory here";
  const auto small = Make("small"), large = Make("large");
  StorageReserver reserver;
  ASSERT_TRUE(small->Reserve(16 * kBytes).ok());
  ASSERT_TRUE(large->Reserve(45 * kBytes).ok());
  for (size_t i = 0; i < 45 * kBytes; i += 8) {
    *reinterpret_cast<uint64_t*>(large->data() + i) = i * 0x9E3779B97F4A7C15u;
  }
  ASSERT_TRUE(reserver.Ensure(*small, 16 * kBytes).ok());
  ASSERT_TRUE(reserver.Ensure(*large, 45 * kBytes).ok());
  EXPECT_TRUE(Becomes([&] { return HugeBytes(large->path()) >= 44 * kBytes; }))
      << HugeBytes(large->path());
  for (size_t i = 0; i < 45 * kBytes; i += 8) {
    ASSERT_EQ(*reinterpret_cast<uint64_t*>(large->data() + i), i * 0x9E3779B97F4A7C15u);
  }
  EXPECT_EQ(HugeBytes(small->path()), 0u);
  // Another mapping of the file has the same pages.
  auto other_mapping = MappedFile::Open(large->path(), 0, 64 * kBytes);
  ASSERT_TRUE(other_mapping.ok());
  EXPECT_EQ((*other_mapping)->data()[1000], large->data()[1000]);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*other_mapping)->data()) % (2u << 20), 0u);
}

// While a file grows all the time, the helper collapses the pages of other files slowly.
TEST_F(StorageReserverTest, PagesAreCollapsedSlowlyWhileFilesGrow) {
  if (!CanCollapse()) GTEST_SKIP() << "no huge pages of shared memory here";
  const auto large = Make("large"), growing = Make("growing");
  StorageReserver reserver;
  ASSERT_TRUE(large->Reserve(45 * kBytes).ok());
  ASSERT_TRUE(reserver.Ensure(*growing, kBytes).ok());
  reserver.Collapse(*large);
  size_t used = kBytes;
  EXPECT_TRUE(Becomes([&] {
    used += kBytes / 16;
    EXPECT_TRUE(used > 60 * kBytes || reserver.Ensure(*growing, used).ok());
    return HugeBytes(large->path()) >= 44 * kBytes;
  })) << HugeBytes(large->path());
  EXPECT_LT(used, 60 * kBytes) << "the helper has waited until no file grew";
  reserver.Cancel({large.get(), growing.get()});
}

// The files of tiered tables are not reserved ahead: only Collapse works on them.
TEST_F(StorageReserverTest, CollapseGoesAsFarAsTheFileHasGrownAndDoesNotGrowIt) {
  if (!CanCollapse()) GTEST_SKIP() << "no huge pages of shared memory here";
  const auto file = Make("file");
  StorageReserver reserver;
  for (const size_t bytes : {33 * kBytes, 48 * kBytes}) {
    ASSERT_TRUE(file->Reserve(bytes).ok());
    const size_t before = file->size();
    EXPECT_TRUE(file->HasToCollapse());
    reserver.Collapse(*file);
    reserver.Collapse(*file);
    EXPECT_TRUE(Becomes([&] { return !file->HasToCollapse(); }));
    EXPECT_GE(HugeBytes(file->path()), (bytes / (2 * kBytes) - 1) * 2 * kBytes);
    EXPECT_EQ(file->size(), before);
  }
  reserver.Cancel({file.get()});
}

TEST_F(StorageReserverTest, ADiscardedFileIsUnmappedAndStaysWhereItIs) {
  StorageReserver reserver;
  auto file = Make("file");
  ASSERT_TRUE(reserver.Ensure(*file, kBytes).ok());  // the helper may be growing it
  ASSERT_TRUE(IsMapped(dir_ / "file"));
  reserver.Discard(std::move(file));
  EXPECT_TRUE(Becomes([&] { return !IsMapped(dir_ / "file"); }));
  EXPECT_EQ(access((dir_ / "file").c_str(), F_OK), 0);
  reserver.Discard(nullptr);
}

TEST_F(StorageReserverTest, WhatIsDiscardedLastIsUnmappedWithTheReserver) {
  {
    StorageReserver reserver;
    reserver.Discard(Make("file"));
  }
  EXPECT_FALSE(IsMapped(dir_ / "file"));
}

#ifndef __SANITIZE_THREAD__  // it ends such a child: "dup thread with used id"
// A thread that the child starts may have the stack of its parent's helper, and with it the same
// pthread_t.
TEST_F(StorageReserverTest, AForkedChildMayDestroyItsCopyWhileItsOwnHelperRuns) {
  const auto file = Make("file"), childs_file = Make("child's file");
  auto reserver = std::make_unique<StorageReserver>();
  ASSERT_TRUE(reserver->Ensure(*file, kBytes).ok());
  ExpectInAChild([&] {
    auto own = std::make_unique<StorageReserver>();
    const bool ok = own->Ensure(*childs_file, kBytes).ok();
    reserver.reset();
    own.reset();
    return ok;
  });
}
#endif

}  // namespace
}  // namespace tsps
