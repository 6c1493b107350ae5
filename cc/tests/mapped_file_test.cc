#include "core/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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
  std::thread other([&] {
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
  other.join();
  EXPECT_EQ(beyond, 0u);
  EXPECT_EQ((*file)->size(), kPages * kPage);
}

}  // namespace
}  // namespace tsps
