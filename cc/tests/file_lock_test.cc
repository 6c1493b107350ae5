#include "core/os/file_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/in_a_child.h"
#include "tests/temp_dir.h"

namespace tsps {
namespace {

#ifdef TFSPS_FAULT_POINTS

// Forks a child while a lock is being acquired. The child writes its id to `forked` and lives on.
// Returns whether this process holds the lock afterwards, and does not release it.
bool ForksWhileALockIsAcquired(const std::string& path, int forked) {
  setenv("TFSPS_FAULT_DELAY", "300000", 1);
  std::thread owner([&] {
    auto lock = FileLock::Acquire(path);
    if (!lock.ok()) _exit(1);
    lock->release();
  });
  auto probe = LockProbe::Open(path);
  while (!probe.ok() || !(*probe)->Held()) probe = LockProbe::Open(path);
  if (fork() == 0) {
    alarm(200);
    const pid_t id = getpid();
    if (write(forked, &id, sizeof(id)) != sizeof(id)) _exit(1);
    while (true) pause();
  }
  owner.join();
  return (*probe)->Held();
}

TEST(FileLock, AChildForkedWhileTheLockIsAcquiredDoesNotKeepIt) {
  TempDir dir;
  int forked[2];
  ASSERT_EQ(pipe(forked), 0);
  ExpectInAChild([&] { return ForksWhileALockIsAcquired(dir / "writer.lock", forked[1]); });
  close(forked[1]);
  pid_t child = 0;
  ASSERT_EQ(read(forked[0], &child, sizeof(child)), static_cast<ssize_t>(sizeof(child)));
  close(forked[0]);
  auto probe = LockProbe::Open(dir / "writer.lock");
  ASSERT_TRUE(probe.ok());
  EXPECT_FALSE((*probe)->Held());
  kill(child, SIGKILL);
}

#endif  // TFSPS_FAULT_POINTS

TEST(FileLock, IsOneOwnersUntilItIsGivenBack) {
  TempDir dir;
  auto lock = FileLock::Acquire(dir / "writer.lock");
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  auto probe = LockProbe::Open(dir / "writer.lock");
  ASSERT_TRUE(probe.ok());
  EXPECT_TRUE((*probe)->Held());
  EXPECT_EQ(FileLock::Acquire(dir / "writer.lock").status().code(), Code::kAborted);
  lock->reset();
  EXPECT_FALSE((*probe)->Held());
  EXPECT_TRUE(FileLock::Acquire(dir / "writer.lock").ok());
}

TEST(FileLock, ItsReleaseDoesNotWaitForAChildThatHasACopy) {
  TempDir dir;
  auto lock = FileLock::Acquire(dir / "writer.lock");
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  // Like vfork, this runs no handlers for forks: the child keeps the descriptor.
  const pid_t child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    alarm(200);
    while (true) pause();
  }
  ASSERT_GT(child, 0);
  lock->reset();
  EXPECT_TRUE(FileLock::Acquire(dir / "writer.lock").ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace tsps
