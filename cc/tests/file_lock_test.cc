#include "core/os/file_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/temp_dir.h"

namespace tsps {
namespace {

#ifdef TFSPS_FAULT_POINTS

// In a process of its own: fault points are slow there. Exits with 0 if the lock ended with its
// owner, although a child was forked while it was being taken, and lives.
void ForkWhileTheLockIsTaken(const std::string& path) {
  setenv("TFSPS_FAULT_DELAY", "300000", 1);
  std::thread other([&] {
    auto lock = FileLock::Acquire(path);
    if (!lock.ok()) _exit(1);
  });  // takes the lock and gives it back
  auto probe = LockProbe::Open(path);
  while (!probe.ok() || !(*probe)->Held()) probe = LockProbe::Open(path);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  other.join();
  const bool held = (*probe)->Held();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  _exit(held ? 2 : 0);
}

TEST(FileLock, AChildForkedWhileTheLockIsTakenDoesNotKeepIt) {
  TempDir dir;
  const pid_t child = fork();
  if (child == 0) ForkWhileTheLockIsTaken(dir / "writer.lock");
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
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

}  // namespace
}  // namespace tsps
