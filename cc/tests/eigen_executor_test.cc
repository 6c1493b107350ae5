#include "executor/eigen_executor.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace tsps {
namespace {

// Counts how often each item of [0, n) was visited.
std::vector<int> Visits(Executor& executor, size_t n, size_t grain) {
  std::vector<int> visits(n);
  executor.ParallelFor(n, grain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) ++visits[i];
  });
  return visits;
}

TEST(EigenExecutor, VisitsEveryItemOnce) {
  EigenExecutor executor(4);
  for (size_t n : {0, 1, 2, 3, 15, 16, 17, 1000, 4096}) {
    for (size_t grain : {0, 1, 7, 100, 5000}) {
      EXPECT_EQ(Visits(executor, n, grain), std::vector<int>(n, 1)) << n << " " << grain;
    }
  }
}

TEST(EigenExecutor, RangesHaveAtLeastTheGrainExceptTheLast) {
  EigenExecutor executor(4);
  executor.ParallelFor(1003, 100, [](size_t begin, size_t end) {
    EXPECT_TRUE(end - begin >= 100 || end == 1003) << begin << " " << end;
  });
}

TEST(EigenExecutor, ZeroThreadsMeansOnePerUsableProcessor) {
  EXPECT_GE(EigenExecutor(0).threads(), 1);
  EXPECT_EQ(EigenExecutor(3).threads(), 3);
}

TEST(EigenExecutor, SeveralThreadsMayCallAtOnce) {
  EigenExecutor executor(4);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (Visits(executor, 500, 1) != std::vector<int>(500, 1)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(EigenExecutor, LoopsInsideOfAWorkerHaveOneThread) {
  EigenExecutor executor(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> arrived{0}, wrong{0};
  executor.ParallelFor(2, 1, [&](size_t, size_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();  // so that each thread gets one
    wrong += executor.threads() != (std::this_thread::get_id() == caller ? 2 : 1);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(EigenExecutor, SharesCoverAllItemsOnce) {
  EigenExecutor executor(3);
  for (const bool worth_sharing : {false, true}) {
    std::vector<std::atomic<int>> visits(1000);
    std::atomic<int> calls{0};
    ForEachShare(worth_sharing, executor, [&](size_t share, size_t shares) {
      EXPECT_EQ(shares, worth_sharing ? 3u : 1u);
      ++calls;
      for (uint32_t i = 0; i < visits.size(); ++i) visits[i] += ShareOf(i, shares) == share;
    });
    EXPECT_EQ(calls, worth_sharing ? 3 : 1);
    for (const std::atomic<int>& n : visits) EXPECT_EQ(n, 1);
  }
}

TEST(EigenExecutor, NestedCallsEnd) {
  EigenExecutor executor(3);
  std::atomic<int> visits{0};
  executor.ParallelFor(20, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      executor.ParallelFor(50, 1, [&](size_t b, size_t e) { visits += static_cast<int>(e - b); });
    }
  });
  EXPECT_EQ(visits, 20 * 50);
}

TEST(EigenExecutor, WhatARangeThrowsIsThrownAfterAllRanges) {
  EigenExecutor executor(4);
  for (const size_t bad : {size_t{0}, size_t{500}, size_t{999}}) {
    std::atomic<int> visits{0};
    const auto body = [&](size_t begin, size_t end) {
      visits += static_cast<int>(end - begin);
      if (begin <= bad && bad < end) throw std::bad_alloc();
    };
    EXPECT_THROW(executor.ParallelFor(1000, 1, body), std::bad_alloc);
    EXPECT_EQ(visits, 1000);
  }
  EXPECT_EQ(Visits(executor, 1000, 1), std::vector<int>(1000, 1));
}

TEST(EigenExecutor, AForkedChildRunsSerially) {
  EigenExecutor executor(4);
  ASSERT_EQ(Visits(executor, 1000, 1), std::vector<int>(1000, 1));  // the workers are running
  const pid_t child = fork();
  if (child == 0) {
    alarm(200);  // a child that waits for its parent's workers would never end
    std::set<std::thread::id> threads;
    EigenExecutor* copy = &executor;
    copy->ParallelFor(1000, 1, [&](size_t, size_t) { threads.insert(std::this_thread::get_id()); });
    const bool good = threads.size() == 1 && Visits(*copy, 1000, 1) == std::vector<int>(1000, 1);
    copy->~EigenExecutor();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tsps
