#include "core/os/directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/temp_dir.h"

namespace tsps {
namespace {

TEST(Directory, RemovesNamesOfTheDirectoryThatWasOpened) {
  TempDir dir;
  ASSERT_TRUE(MakePrivateDirectory(dir / "a").ok());
  ASSERT_TRUE(MakePrivateDirectory(dir / "a/child").ok());
  ASSERT_TRUE(MakePrivateDirectory(dir / "b").ok());
  for (const std::string name : {"a/file", "b/file"}) {
    const Result<int> fd = OpenRegularFile(dir / name, O_WRONLY | O_CREAT, "cannot make");
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    close(*fd);
  }
  const Result<Directory> opened = Directory::Open(dir / "a");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  // Another directory takes its place.
  ASSERT_EQ(rename((dir / "a").c_str(), (dir / "moved").c_str()), 0);
  ASSERT_EQ(symlink("b", (dir / "a").c_str()), 0);
  ASSERT_TRUE(opened->OpenChild("child").ok());
  opened->Unlink("file");
  opened->Unlink("missing");
  opened->RemoveChild("child");
  EXPECT_TRUE(opened->Entries().empty());
  EXPECT_EQ(EntriesOf(dir / "b"), std::vector<std::string>{"file"});
}

TEST(Directory, RefusesLinksFilesAndWhatOthersCanWrite) {
  TempDir dir;
  ASSERT_TRUE(MakePrivateDirectory(dir / "a").ok());
  ASSERT_EQ(symlink("a", (dir / "link").c_str()), 0);
  close(open((dir / "file").c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_EQ(CheckPrivateDirectory(dir / "link").code(), Code::kPermissionDenied);
  EXPECT_EQ(CheckPrivateDirectory(dir / "file").code(), Code::kDataLoss);
  EXPECT_EQ(CheckPrivateDirectory(dir / "missing").code(), Code::kNotFound);
  for (const mode_t mode : {0720, 0702, 0777}) {
    ASSERT_EQ(chmod((dir / "a").c_str(), mode), 0);
    EXPECT_EQ(CheckPrivateDirectory(dir / "a").code(), Code::kPermissionDenied) << mode;
  }
  ASSERT_EQ(chmod((dir / "a").c_str(), 0755), 0);
  EXPECT_TRUE(CheckPrivateDirectory(dir / "a").ok());
  if (geteuid() == 0) {
    ASSERT_EQ(chown((dir / "a").c_str(), 65534, 65534), 0);
    EXPECT_EQ(CheckPrivateDirectory(dir / "a").code(), Code::kPermissionDenied);
  }
}

TEST(OpenRegularFile, RefusesWhatIsNoFileAndDoesNotBlock) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  ASSERT_TRUE(MakePrivateDirectory(dir / "directory").ok());
  ASSERT_EQ(symlink("fifo", (dir / "link").c_str()), 0);
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR}) {
    EXPECT_EQ(OpenRegularFile(dir / "fifo", flags, "cannot open").status().code(), Code::kDataLoss);
    EXPECT_EQ(OpenRegularFile(dir / "link", flags, "cannot open").status().code(),
              Code::kPermissionDenied);
  }
  EXPECT_EQ(OpenRegularFile(dir / "directory", O_RDONLY, "cannot open").status().code(),
            Code::kDataLoss);
  const Status missing = OpenRegularFile(dir / "missing", O_RDONLY, "cannot open lock").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_EQ(missing.message().find("cannot open lock"), 0u) << missing.message();
  if (geteuid() == 0) {
    close(open((dir / "theirs").c_str(), O_CREAT | O_WRONLY, 0600));
    ASSERT_EQ(chown((dir / "theirs").c_str(), 65534, 65534), 0);
    EXPECT_EQ(OpenRegularFile(dir / "theirs", O_RDONLY, "cannot open").status().code(),
              Code::kPermissionDenied);
  }
}

}  // namespace
}  // namespace tsps
