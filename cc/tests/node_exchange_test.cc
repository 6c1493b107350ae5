#include "core/exchange/node_exchange.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "core/exchange/node_ranks.h"
#include "executor/eigen_executor.h"
#include "tests/node_exchange_fixture.h"

namespace tsps {
namespace {

class NodeExchangeTest : public ::testing::Test {
 protected:
  NodeExchangeTest() {
    char name[] = "/tmp/tsps-exchange-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~NodeExchangeTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<NodeExchange> Join(int rank, int ranks, size_t window = 1 << 20) {
    auto joined = NodeExchange::Create(folder_, {rank, ranks, 100 + rank, 0, window});
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    return std::move(*joined);
  }
  std::vector<std::unique_ptr<NodeExchange>> JoinAll(int ranks, size_t window = 1 << 20) {
    std::vector<std::unique_ptr<NodeExchange>> all;
    for (int r = 0; r < ranks; ++r) all.push_back(Join(r, ranks, window));
    return all;
  }

  static MergeCall Call(const std::string& operation = "merge", double timeout_s = 20) {
    MergeCall call;
    call.operation = operation;
    call.step = 7;
    call.reduction = Reduction::kFrequency;
    call.timeout_s = timeout_s;
    return call;
  }

  // One call on every rank, each on its own thread.
  static std::vector<Status> Merge(std::vector<std::unique_ptr<NodeExchange>>& ranks,
                                   const std::vector<RankGradients>& gradients,
                                   const std::vector<MergeCall>& calls, Read* read) {
    std::vector<Status> statuses(ranks.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        EigenExecutor executor(r % 2 == 0 ? 1 : 3);
        statuses[r] = ranks[r]->Merge(calls[r], gradients[r].Tables(), executor,
                                      r == 0 ? read->Reader() : nullptr);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  std::string folder_;
};

TEST_F(NodeExchangeTest, MergesAllRanksGradientsInRankOrder) {
  auto ranks = JoinAll(3);
  for (uint64_t step = 0; step < 20; ++step) {
    std::vector<RankGradients> gradients;
    // Of different sizes, none at all included.
    for (uint64_t r = 0; r < 3; ++r) {
      gradients.push_back(Draw(step * 10 + r, {step % 4 == r ? 0 : 50 * (r + 1), 7, 0, 3000}));
    }
    Read read;
    for (const Status& status : Merge(ranks, gradients, {3, Call()}, &read)) {
      ASSERT_TRUE(status.ok()) << status.message();
    }
    ExpectMergedLikeOneList(gradients, read);
  }
  EXPECT_EQ(ranks[1]->counters().calls.load(), 20u);
  EXPECT_EQ(ranks[1]->counters().rounds.load(), 20u);
}

TEST_F(NodeExchangeTest, WhatIsLargerThanTheWindowGoesInRounds) {
  auto ranks = JoinAll(4, 1 << 16);
  const std::vector<size_t> sizes[] = {{4000, 100}, {10, 0}, {0, 0}, {20000, 2}};
  for (uint64_t step = 0; step < 5; ++step) {  // calls of one round and of many, in turns
    std::vector<RankGradients> gradients;
    for (uint64_t r = 0; r < 4; ++r) {
      gradients.push_back(Draw(step * 10 + r, step % 2 == 0 ? sizes[r] : sizes[1]));
    }
    Read read;
    const uint64_t before = ranks[0]->counters().rounds.load();
    for (const Status& status : Merge(ranks, gradients, {4, Call()}, &read)) {
      ASSERT_TRUE(status.ok()) << status.message();
    }
    const uint64_t rounds = ranks[0]->counters().rounds.load() - before;
    EXPECT_EQ(rounds > 10, step % 2 == 0) << rounds;
    ExpectMergedLikeOneList(gradients, read);
  }
  // The files hold a window, not the gradients.
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_LT(entry.file_size(), size_t{128} << 10) << entry.path();
  }
}

TEST_F(NodeExchangeTest, TheOrderOfKeysIsAFunctionOfTheContributions) {
  std::vector<std::vector<int64_t>> first;
  for (int run = 0; run < 2; ++run) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    auto ranks = JoinAll(3);
    const std::vector<RankGradients> gradients = {Draw(1, {900}), Draw(2, {700}), Draw(3, {800})};
    Read read;
    Merge(ranks, gradients, {3, Call()}, &read);
    if (run == 0) first = read.keys;
    EXPECT_EQ(read.keys, first);
  }
}

TEST_F(NodeExchangeTest, RanksThatDoDifferentThingsAllGetAnError) {
  auto ranks = JoinAll(2);
  Read read;
  const std::vector<RankGradients> same = {Draw(1, {10}), Draw(2, {10})};
  const auto statuses = Merge(ranks, same, {Call("tsps.0"), Call("tsps.1")}, &read);
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("'tsps.0'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("'tsps.1'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank 100"), std::string::npos) << status.message();
  }
  // For good.
  EXPECT_FALSE(Merge(ranks, same, {2, Call()}, &read)[0].ok());
}

TEST_F(NodeExchangeTest, AnErrorOfOneRankIsTheOthersToo) {
  auto ranks = JoinAll(3);
  std::vector<RankGradients> gradients = {Draw(1, {10}), Draw(2, {10}), Draw(3, {10})};
  Read read;
  std::vector<MergeCall> calls(3, Call());
  calls[1].operation = std::string(300, 'x');  // refused before it is announced
  const auto statuses = Merge(ranks, gradients, calls, &read);
  EXPECT_EQ(statuses[1].code(), Code::kInvalidArgument);
  for (const int r : {0, 2}) {
    EXPECT_EQ(statuses[static_cast<size_t>(r)].code(), Code::kAborted);
    const std::string& message = statuses[static_cast<size_t>(r)].message();
    EXPECT_NE(message.find("rank 101"), std::string::npos) << message;
    EXPECT_NE(message.find("127 characters"), std::string::npos) << message;
  }
}

// Joins as rank 1 of 2 (rank 0 has joined), makes one call, and then does `then`. Returns its pid
// when the call is made.
class OtherRank {
 public:
  OtherRank(const std::string& folder, const std::function<void()>& then) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      auto joined = NodeExchange::Create(folder, {1, 2, 101, 0, 1 << 20});
      if (!joined.ok()) _exit(3);
      if (write(ready[1], "j", 1) != 1) _exit(4);
      SerialExecutor serial;
      MergeCall call;
      call.operation = "merge";
      call.step = 6;
      call.timeout_s = 20;
      const RankGradients gradients = Draw(9, {10});
      if (!(*joined)->Merge(call, gradients.Tables(), serial, nullptr).ok()) _exit(5);
      if (write(ready[1], "m", 1) != 1) _exit(6);
      then();
      _exit(0);
    }
    ready_ = ready[0];
    close(ready[1]);
    Await('j');
  }
  ~OtherRank() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(ready_);
  }
  void Await(char what) {
    char got = 0;
    EXPECT_EQ(read(ready_, &got, 1), 1);
    EXPECT_EQ(got, what);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  int ready_;
};

Status SecondCall(NodeExchange& leader, OtherRank& other, double timeout_s) {
  SerialExecutor serial;
  MergeCall call;
  call.operation = "merge";
  call.step = 6;
  call.timeout_s = 20;
  const RankGradients gradients = Draw(1, {10});
  Read read;
  EXPECT_TRUE(leader.Merge(call, gradients.Tables(), serial, read.Reader()).ok());
  other.Await('m');
  call.step = 7;
  call.timeout_s = timeout_s;
  Read again;
  return leader.Merge(call, gradients.Tables(), serial, again.Reader());
}

TEST_F(NodeExchangeTest, TheLeaderLearnsWhatAllRanksSayOfAStep) {
  auto ranks = JoinAll(3);
  MergeCall call = Call("state");
  const Status objection = Error(Code::kInvalidArgument, "an id is out of range");
  const struct {
    uint64_t digests[3];
    int objects;  // which rank; -1: none
    Code expected;
  } cases[] = {{{5, 5, 5}, -1, Code::kOk},
               {{5, 5, 6}, -1, Code::kFailedPrecondition},
               {{5, 6, 6}, -1, Code::kFailedPrecondition},
               {{5, 6, 5}, 2, Code::kInvalidArgument},
               {{5, 5, 5}, 0, Code::kInvalidArgument},
               {{0, 0, 0}, -1, Code::kOk}};
  for (const auto& one : cases) {
    ++call.step;
    ranks[0]->verdicts().PostStatement(call.step, one.digests[0],
                                       one.objects == 0 ? objection : Status());
    std::thread others([&] {
      for (int r = 1; r < 3; ++r) {
        ranks[static_cast<size_t>(r)]->verdicts().PostStatement(
            call.step, one.digests[r], one.objects == r ? objection : Status());
      }
    });
    Status agreed;
    const Status told = ranks[0]->verdicts().AwaitStatements(call, &agreed);
    others.join();
    ASSERT_TRUE(told.ok()) << told.message();
    EXPECT_EQ(agreed.code(), one.expected) << agreed.message();
    if (one.objects >= 0) {
      EXPECT_EQ(agreed.message(),
                "rank " + std::to_string(100 + one.objects) + ": an id is out of range");
    }
  }
  call.timeout_s = 0.01;
  ranks[0]->verdicts().PostStatement(++call.step, 1, Status());
  ranks[1]->verdicts().PostStatement(call.step, 1, Status());
  Status agreed;
  EXPECT_EQ(ranks[0]->verdicts().AwaitStatements(call, &agreed).code(), Code::kDeadlineExceeded);
}

TEST_F(NodeExchangeTest, TheLeadersVerdictsReachAllRanksInTheirOrder) {
  auto ranks = JoinAll(3);
  const std::vector<RankGradients> gradients(3, Draw(1, {5}));
  for (int step = 1; step <= 6; ++step) {
    MergeCall call = Call();
    call.step = step;
    Read read;
    for (const Status& status : Merge(ranks, gradients, {3, call}, &read)) {
      ASSERT_TRUE(status.ok()) << status.message();
    }
    const Status posted = step % 2 == 0 ? Status() : Error(Code::kResourceExhausted, "no ", step);
    std::thread leader([&] { ranks[0]->verdicts().PostVerdict(step, posted); });
    for (size_t r = 1; r < 3; ++r) {
      Status verdict = Error(Code::kInternal, "not set");
      const Status awaited = ranks[r]->verdicts().AwaitVerdict(call, &verdict);
      EXPECT_TRUE(awaited.ok()) << awaited.message();
      EXPECT_EQ(verdict.code(), posted.code());
      EXPECT_EQ(verdict.message(), posted.message());
    }
    leader.join();
  }
}

TEST_F(NodeExchangeTest, AVerdictThatDoesNotComeIsAnError) {
  auto ranks = JoinAll(2);
  MergeCall call = Call("make", 0.3);
  Status verdict;
  EXPECT_EQ(ranks[1]->verdicts().AwaitVerdict(call, &verdict).code(), Code::kDeadlineExceeded);
  ranks[0]->verdicts().PostVerdict(8, Status());  // the one that was awaited
  ranks[0]->verdicts().PostVerdict(8, Status());
  const Status other = ranks[1]->verdicts().AwaitVerdict(call, &verdict);
  EXPECT_EQ(other.code(), Code::kAborted);
  EXPECT_NE(other.message().find("decided on step 8 when rank 101 had made step 7"),
            std::string::npos)
      << other.message();
  EXPECT_EQ(ranks[0]->Part([] { return Error(Code::kInternal, "broke"); }).code(), Code::kInternal);
  const Status failed = ranks[1]->verdicts().AwaitVerdict(Call("make", 20), &verdict);
  EXPECT_EQ(failed.code(), Code::kAborted);
  EXPECT_NE(failed.message().find("broke"), std::string::npos) << failed.message();
}

TEST_F(NodeExchangeTest, ADeadRankIsNamed) {
  const auto leader = Join(0, 2);
  OtherRank other(folder_, [] { raise(SIGKILL); });
  const Status status = SecondCall(*leader, other, 20);
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.message();
  const std::string expected = "rank 101 (pid " + std::to_string(other.pid()) +
                               ") died in step 6; rank 100 was waiting for it in operation "
                               "'merge' of step 7";
  EXPECT_EQ(status.message(), expected);
}

TEST_F(NodeExchangeTest, ARankThatHasLeftHasEndedNotDied) {
  auto ranks = JoinAll(2);
  ranks[1]->SetStep(41);
  ranks[1]->Leave();
  auto seen = NodeRanks::Open(folder_, 2);
  ASSERT_TRUE(seen.ok());
  EXPECT_TRUE((*seen)->Look()[1].left);
  ranks[1].reset();
  EXPECT_FALSE((*seen)->Look()[1].alive);
  EXPECT_TRUE((*seen)->Look()[0].alive);
  SerialExecutor serial;
  const Status status = ranks[0]->Merge(Call(), Draw(1, {10}).Tables(), serial, nullptr);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("ended in step 41"), std::string::npos) << status.message();
}

TEST_F(NodeExchangeTest, RanksAtDifferentStepsAllGetAnError) {
  auto ranks = JoinAll(2);
  std::vector<MergeCall> calls(2, Call());
  calls[1].step = 8;
  Read read;
  for (const Status& status : Merge(ranks, {Draw(1, {10}), Draw(2, {10})}, calls, &read)) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("for step 7"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("for step 8"), std::string::npos) << status.message();
  }
}

TEST_F(NodeExchangeTest, AStoppedRankAndASlowOneAreToldApart) {
  {
    const auto leader = Join(0, 2);
    OtherRank other(folder_, [] { raise(SIGSTOP); });
    const Status status = SecondCall(*leader, other, 0.5);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.message();
    EXPECT_NE(status.message().find("waited 0.5 s for rank 101"), std::string::npos);
    EXPECT_NE(status.message().find("is stopped by a signal, and step 6 is the last"),
              std::string::npos)
        << status.message();
  }
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directory(folder_);
  const auto leader = Join(0, 2);
  OtherRank other(folder_, [] { sleep(30); });
  const Status status = SecondCall(*leader, other, 0.5);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.message();
  EXPECT_NE(status.message().find("is alive and waiting for something"), std::string::npos)
      << status.message();
}

TEST_F(NodeExchangeTest, ARankThatIsLateByLessThanTheTimeoutIsNoFailure) {
  auto ranks = JoinAll(2);
  const std::vector<RankGradients> gradients = {Draw(1, {10}), Draw(2, {10})};
  Read read;
  SerialExecutor serial;
  std::atomic<bool> begun{false};
  std::thread late([&] {
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    EXPECT_TRUE(ranks[1]->Merge(Call(), gradients[1].Tables(), serial, nullptr).ok());
  });
  begun = true;
  EXPECT_TRUE(ranks[0]->Merge(Call(), gradients[0].Tables(), serial, read.Reader()).ok());
  late.join();
  EXPECT_GT(ranks[0]->counters().waited_ns.load(), 0u);
}

TEST_F(NodeExchangeTest, ARankIsWaitedForAsLongAsItReportsProgress) {
  const auto leader = Join(0, 2);
  const std::string folder = folder_;
  OtherRank other(folder_, [folder] {
    const auto ranks = NodeRanks::Open(folder, 2);
    for (int i = 0; i < 20 && ranks.ok(); ++i) {
      usleep(100000);
      if (!(*ranks)->ReportProgress(1).ok()) _exit(1);
    }
    sleep(30);
  });
  const auto began = std::chrono::steady_clock::now();
  const Status status = SecondCall(*leader, other, 1.0);
  const auto waited = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.message();
  EXPECT_GE(waited, std::chrono::seconds(3)) << "2 s of progress, and 1 s without";
  EXPECT_EQ(status.message().find("waited 1 s"), std::string::npos) << status.message();
}

TEST_F(NodeExchangeTest, ACancelledWaitEnds) {
  auto ranks = JoinAll(2);
  std::atomic<bool> cancelled{true};
  MergeCall call = Call();
  call.cancelled = &cancelled;
  SerialExecutor serial;
  const Status status = ranks[0]->Merge(call, Draw(1, {10}).Tables(), serial, nullptr);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("cancelled"), std::string::npos);
}

TEST_F(NodeExchangeTest, FilesOfAnotherRunOrNodeAreRefused) {
  const auto leader = Join(0, 2);
  EXPECT_EQ(NodeExchange::Create(folder_, {0, 2, 100, 0, 1 << 20}).status().code(), Code::kAborted);
  const auto other = Join(1, 3);
  SerialExecutor serial;
  const Status status = leader->Merge(Call(), Draw(1, {10}).Tables(), serial, nullptr);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("of a node with 3 ranks; this one has 2"), std::string::npos)
      << status.message();
  EXPECT_EQ(NodeExchange::Create(folder_, {5, 2}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(NodeExchange::Create(folder_, {0, 2, 0, 3}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tsps
