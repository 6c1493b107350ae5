#include "core/os/exit_deadline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tsps {
namespace {

TEST(ExitDeadlineDeathTest, EndsAProcessThatIsStuckAndSaysWhy) {
  const auto stuck = [] {
    const ExitDeadline deadline(0.2, "nobody came");
    std::this_thread::sleep_for(std::chrono::seconds(60));
  };
  EXPECT_EXIT(stuck(), testing::ExitedWithCode(1), "^nobody came\n$");
}

TEST(ExitDeadlineDeathTest, DoesNothingWhenItIsCancelledInTime) {
  const auto quick = [] {
    ExitDeadline cancelled(0.2, "cancelled");
    cancelled.Cancel();
    cancelled.Cancel();
    {
      const ExitDeadline left(0.2, "left");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    _exit(7);
  };
  EXPECT_EXIT(quick(), testing::ExitedWithCode(7), "^$");
}

}  // namespace
}  // namespace tsps
