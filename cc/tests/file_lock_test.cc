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

// Runs in a separate process, because it makes fault points slow. A child is forked while the lock
// is being taken. Exits with 0 if the lock ends with its owner although the child still lives.
void ForkWhileTheLockIsTaken(const std::string& path) {
  setenv("TFSPS_FAULT_DELAY", "300000", 1);
  std::thread owner([&] {
    auto lock = FileLock::Acquire(path);
    if (!lock.ok()) _exit(1);
  });  // takes the lock and releases it
  auto probe = LockProbe::Open(path);
  while (!probe.ok() || !(*probe)->Held()) probe = LockProbe::Open(path);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  owner.join();
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
