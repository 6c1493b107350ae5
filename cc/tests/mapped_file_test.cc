#include "core/os/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/temp_dir.h"

namespace tsps {
namespace {

constexpr size_t kPage = 4096;

// The writer's helper thread grows files while others ask for their sizes.
TEST(MappedFile, SizeIsNeverBeyondTheFileWhileOtherThreadsAskForIt) {
  constexpr size_t kPages = 4000;
  TempDir dir;
  auto file = MappedFile::Create(dir / "file", kPage, kPages * kPage);
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::atomic<bool> stop{false};
  std::thread refresher([&] {
    while (!stop.load()) (*file)->RefreshSize();
  });
  size_t beyond = 0;
  for (size_t pages = 2; pages <= kPages; ++pages) {
    const Status status = (*file)->Reserve(pages * kPage);
    EXPECT_TRUE(status.ok()) << status.message();
    struct stat info;
    EXPECT_EQ(stat((dir / "file").c_str(), &info), 0);
    beyond += (*file)->size() > static_cast<size_t>(info.st_size);
  }
  stop = true;
  refresher.join();
  EXPECT_EQ(beyond, 0u);
  EXPECT_EQ((*file)->size(), kPages * kPage);
}

// A folder is removed and made again while a process has its files mapped.
TEST(MappedFile, WhatLiesUnderItsPathByNowIsNeitherGrownNorMapped) {
  TempDir dir;
  auto file = MappedFile::Create(dir / "file", kPage, SIZE_MAX);
  ASSERT_TRUE(file.ok()) << file.status().message();
  (*file)->data()[0] = 'a';
  EXPECT_TRUE((*file)->CheckInPlace().ok());
  const auto refused = [&](const char* why) {
    for (const Status& status :
         {(*file)->CheckInPlace(), (*file)->Reserve(2 * kPage), (*file)->MakeWritable()}) {
      EXPECT_EQ(status.code(), Code::kDataLoss) << status.message();
      EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    }
    EXPECT_EQ((*file)->RefreshSize(), kPage);
    EXPECT_EQ((*file)->data()[0], 'a');
  };
  ASSERT_EQ(unlink((dir / "file").c_str()), 0);
  refused("was removed");
  auto new_file = MappedFile::Create(dir / "file", kPage, SIZE_MAX);
  ASSERT_TRUE(new_file.ok()) << new_file.status().message();
  refused("was replaced");
  EXPECT_EQ((*new_file)->RefreshSize(), kPage);
  EXPECT_EQ((*new_file)->data()[0], 0);
}

}  // namespace
}  // namespace tsps
