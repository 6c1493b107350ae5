// Kills a child process at a fault point (core/base/fault_point.h), in builds with fault points.
#ifndef TFSPS_TESTS_KILLED_AT_H_
#define TFSPS_TESTS_KILLED_AT_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tsps {

// Runs `body` in a child process, which is killed when it passes `point` for the n-th time. Returns
// whether it was killed.
template <typename Body>
bool KilledAt(const std::string& point, long n, const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TFSPS_FAULT_KILL", (point + ":" + std::to_string(n)).c_str(), 1);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the child failed";
  return false;
}

}  // namespace tsps

#endif  // TFSPS_TESTS_KILLED_AT_H_
