// Runs a part of a test in a forked child.
#ifndef TFSPS_TESTS_IN_A_CHILD_H_
#define TFSPS_TESTS_IN_A_CHILD_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tsps {

// Expects that `body` returns true in a forked child, within 200 s.
template <typename Body>
void ExpectInAChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(200);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace tsps

#endif  // TFSPS_TESTS_IN_A_CHILD_H_
