#include "core/os/storage_reserver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

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

// Within 10 s, on a busy machine.
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

}  // namespace
}  // namespace tsps
