#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "core/table/index.h"
#include "tests/group_fixture.h"
#include "tests/in_a_child.h"

namespace tsps {
namespace {

TEST_F(GroupTest, AbsentKeysReadTheirInitialValueAndAreNotStored) {
  const int t = AddTable("t", 8);
  std::vector<float> expected(8);
  InitialRow(ConfigOf(*group_, t).initializer, -5, 8, expected.data());
  EXPECT_EQ(LookupRow(*group_, t, -5), expected);
  EXPECT_TRUE(ReadImage(*group_).tables[0].empty());
}

TEST_F(GroupTest, AStepStartsNewRowsFromTheirInitialValue) {
  const int t = AddTable("t", 8);
  const std::vector<float> before = LookupRow(*group_, t, INT64_MIN);
  ASSERT_TSPS_OK(Step(t, {INT64_MIN, INT64_MAX, 0, -1}, 0.25f));
  const std::vector<float> after = LookupRow(*group_, t, INT64_MIN);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(after[i], before[i] - 0.25f);
  EXPECT_EQ(group_->step(), 1u);
  EXPECT_EQ(ReadImage(*group_).tables[0].size(), 4u);
}

TEST_F(GroupTest, TablesWithOneSeedDiffer) {
  const int a = AddTable("a", 8);
  const int b = AddTable("b", 8);
  EXPECT_NE(LookupRow(*group_, a, 1), LookupRow(*group_, b, 1));
}

TEST_F(GroupTest, StepsOutOfOrderAreRefused) {
  const int t = AddTable("t", 4);
  TableUpdate update;
  update.table = t;
  const float hyper[] = {1.0f};
  update.hyper = hyper;
  update.n_hyper = 1;
  EXPECT_EQ(writer_->ApplyStep(2, {update}, executor_).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(writer_->ApplyStep(1, {update}, executor_).ok());
  EXPECT_EQ(writer_->ApplyStep(1, {update}, executor_).code(), Code::kFailedPrecondition);
}

TEST_F(GroupTest, ANonFiniteGradientIsRefusedAndNothingChanges) {
  const int t = AddTable("t", 4, OptimizerKind::kAdagrad);
  ASSERT_TSPS_OK(Step(t, {1, 2}, 0.5f));
  const Image before = ReadImage(*group_);
  const std::vector<int64_t> keys = {1, 77};
  std::vector<float> gradients(8, 1.0f);
  gradients[6] = std::nanf("");
  const float hyper[] = {1.0f, 1e-7f};
  TableUpdate update{t, keys.data(), gradients.data(), 2, hyper, 2};
  const Status status = writer_->ApplyStep(2, {update}, executor_);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("key 77"), std::string::npos) << status.message();
  EXPECT_EQ(ReadImage(*group_), before);
}

TEST_F(GroupTest, ARepeatedKeyIsRefusedAndNothingChanges) {
  const int t = AddTable("t", 2, OptimizerKind::kAdagrad);
  ASSERT_TSPS_OK(Step(t, {1, 2, 3}, 1.0f));
  const Image image = ReadImage(*group_);
  std::vector<int64_t> many(20000);  // would make the index grow
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i) + 10;
  many.back() = 4711;
  for (const auto& [keys, key] : {std::pair{std::vector<int64_t>{2, 1, 2}, "key 2 "},
                                  {{7, 7}, "key 7 "},
                                  {{1, 9, 2, 3, 8, 9, 8}, "key 9 "},
                                  {many, "key 4711 "}}) {
    const Status status = Step(t, keys, 1.0f);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << key << status.message();
    EXPECT_NE(status.message().find(std::string("/g/t: ") + key), std::string::npos)
        << status.message();
  }
  EXPECT_TRUE(ReadImage(*group_) == image);
  EXPECT_EQ(group_->counters().growth_splits.load(), 0u);
  ASSERT_TSPS_OK(writer_->Verify());
  // The refused steps leave nothing in the writer's memory.
  ASSERT_TSPS_OK(Step(t, {2, 7, 1, 9}, 1.0f));
  ASSERT_TSPS_OK(Step(t, {7, 2, 3}, 1.0f));
  ASSERT_TSPS_OK(writer_->Verify());
  EXPECT_EQ(group_->step(), 3u);
}

// The number of keys is refused before any key is read: the arrays are null.
TEST_F(GroupTest, MoreKeysThanPositionsCanTellApartAreRefused) {
  const int t = AddTable("t", 2);
  constexpr size_t kTooMany = size_t{1} << 31;
  const float hyper[] = {1.0f};
  TableUpdate update;
  update.table = t;
  update.n = kTooMany;
  update.hyper = hyper;
  update.n_hyper = 1;
  for (const Status& status : {writer_->Assign(t, nullptr, nullptr, nullptr, kTooMany, executor_),
                               writer_->Erase(t, nullptr, kTooMany).status(),
                               writer_->ApplyStep(1, {update}, executor_)}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_NE(status.message().find("Received: 2147483648"), std::string::npos) << status.message();
  }
}

TEST_F(GroupTest, RandomOperationsEqualAMap) {
  const int t = AddTable("t", 4);
  std::map<int64_t, std::vector<float>> model;
  std::mt19937_64 random(3);
  const auto draw = [&](size_t n) {
    std::vector<int64_t> keys;
    for (size_t i = 0; i < n; ++i) keys.push_back(static_cast<int64_t>(random() % 40000) - 20000);
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    std::shuffle(keys.begin(), keys.end(), random);
    return keys;
  };
  for (int round = 0; round < 120; ++round) {
    const std::vector<int64_t> keys = draw(1 + random() % 1500);
    const float value = static_cast<float>(random() % 1000) / 64;
    switch (random() % 3) {
      case 0: {
        ASSERT_TSPS_OK(Step(t, keys, value));
        for (const int64_t key : keys) {
          auto [entry, absent] = model.try_emplace(key, 4);
          if (absent) InitialRow(ConfigOf(*group_, t).initializer, key, 4, entry->second.data());
          for (float& x : entry->second) x -= value;
        }
        break;
      }
      case 1: {
        const std::vector<float> rows(keys.size() * 4, value);
        ASSERT_TSPS_OK(
            writer_->Assign(t, keys.data(), rows.data(), nullptr, keys.size(), executor_));
        for (const int64_t key : keys) model[key].assign(4, value);
        break;
      }
      default: {
        size_t present = 0;
        for (const int64_t key : keys) present += model.erase(key);
        auto erased = writer_->Erase(t, keys.data(), keys.size());
        ASSERT_TRUE(erased.ok());
        EXPECT_EQ(*erased, present);
      }
    }
    if (round % 20 == 19) Reopen();
    if (round % 10 == 9) {
      ASSERT_EQ(ReadImage(*group_).tables[0], model) << "round " << round;
      ASSERT_TSPS_OK(writer_->Verify());
    }
  }
}

TEST_F(GroupTest, GrowsToHundredsOfThousandsOfKeysAndReadersSeeThem) {
  const int t = AddTable("t", 2);
  auto reader = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader.ok());
  int64_t key = 0;
  for (int step = 0; step < 30; ++step) {
    std::vector<int64_t> keys(10000);
    for (int64_t& k : keys) k = (key++) * 1000003;
    ASSERT_TSPS_OK(Step(t, keys, 1.0f));
  }
  ASSERT_TSPS_OK(writer_->Verify());
  EXPECT_GT(group_->counters().growth_splits.load(), 60u);
  EXPECT_EQ(ReadImage(**reader).tables[0].size(), 300000u);
}

TEST_F(GroupTest, ABulkAssignOfManyKeysGrowsTheIndexAtOnce) {
  const int t = AddTable("t", 1);
  std::vector<int64_t> keys(200000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i) * 7 - 500000;
  std::vector<float> rows(keys.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  ASSERT_TSPS_OK(writer_->Assign(t, keys.data(), rows.data(), nullptr, keys.size(), executor_));
  ASSERT_TSPS_OK(writer_->Verify());
  EXPECT_EQ(LookupRow(*group_, t, keys[150001])[0], 150001.0f);
}

TEST_F(GroupTest, ErasedRowsAreReused) {
  const int t = AddTable("t", 4);
  ASSERT_TSPS_OK(Step(t, {1, 2, 3}, 1.0f));
  const std::vector<int64_t> two = {2, 99};
  EXPECT_EQ(*writer_->Erase(t, two.data(), 2), 1u);
  ASSERT_TSPS_OK(Step(t, {4}, 1.0f));
  ASSERT_TSPS_OK(group_->Read([&](const ReadView& view) {
    EXPECT_EQ(view.Stats(t).rows, 3u);
    EXPECT_EQ(view.Stats(t).row_capacity, 3u);
    return Status();
  }));
  ASSERT_TSPS_OK(writer_->Verify());
}

TEST_F(GroupTest, OfEqualAssignedKeysTheLastWins) {
  const int t = AddTable("t", 1);
  const std::vector<int64_t> keys = {5, 6, 5};
  const std::vector<float> rows = {1, 2, 3};
  ASSERT_TSPS_OK(writer_->Assign(t, keys.data(), rows.data(), nullptr, 3, executor_));
  EXPECT_EQ(LookupRow(*group_, t, 5)[0], 3.0f);
}

TEST_F(GroupTest, MaxRowsIsALimitAndLeavesTheTableAsItWas) {
  TableConfig config = MakeConfig("small", 2);
  config.max_rows = 3;
  const int t = *writer_->CreateTable(config);
  ASSERT_TSPS_OK(writer_->BindOptimizer(t, {OptimizerKind::kSgd, {}}, false));
  ASSERT_TSPS_OK(Step(t, {1, 2, 3}, 1.0f));
  EXPECT_EQ(Step(t, {4}, 1.0f).code(), Code::kResourceExhausted);
  ASSERT_TSPS_OK(Step(t, {3}, 1.0f));
}

TEST_F(GroupTest, BoundedTablesRefuseKeysOutOfRangeByName) {
  TableConfig config = MakeConfig("bounded", 2);
  config.key_limit = 10;
  const int t = *writer_->CreateTable(config);
  const std::vector<int64_t> keys = {0, 9, 10};
  const Status status = CheckKeys(ConfigOf(*group_, t), keys.data(), 3);
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_EQ(status.message(), "table bounded: key 10 at position 2 is not in [0, 10)");
  const std::vector<int64_t> negative = {-1};
  EXPECT_FALSE(CheckKeys(ConfigOf(*group_, t), negative.data(), 1).ok());
  EXPECT_TRUE(CheckKeys(ConfigOf(*group_, t), keys.data(), 2).ok());
}

TEST_F(GroupTest, AnotherOptimizerIsRefusedUnlessReplaced) {
  const int t = AddTable("t", 2, OptimizerKind::kAdagrad);
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
  const OptimizerConfig adam = {OptimizerKind::kAdam, {}};
  EXPECT_EQ(writer_->BindOptimizer(t, adam, false).code(), Code::kFailedPrecondition);
  ASSERT_TSPS_OK(writer_->BindOptimizer(t, adam, true));
  const Image image = ReadImage(*group_);
  EXPECT_EQ(image.tables[0].at(1).size(), 6u);  // row, m, v
  EXPECT_EQ(image.tables[0].at(1)[2], 0.0f);
  Reopen();
  EXPECT_EQ(ReadImage(*group_), image);
  EXPECT_EQ(StatsOf(t).optimizer.kind, OptimizerKind::kAdam);
}

TEST_F(GroupTest, ASecondWriterIsRefusedWithThePidOfTheFirst) {
  auto other_group = Group::Open(dir_ / "g");
  ASSERT_TRUE(other_group.ok());
  auto writer = (*other_group)->OpenWriter();
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.status().code(), Code::kAborted);
  EXPECT_NE(writer.status().message().find(std::to_string(getpid())), std::string::npos);
}

TEST_F(GroupTest, AForkedChildNeitherWritesNorKeepsTheLock) {
  const int t = AddTable("t", 2);
  int gate[2];
  int running[2];
  ASSERT_EQ(pipe(gate), 0);
  ASSERT_EQ(pipe(running), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(gate[1]);
    close(running[1]);  // ends the parent's read: the fork handler of the child has run
    const bool refused = Step(t, {1}, 1.0f).code() == Code::kFailedPrecondition;
    char byte;
    while (read(gate[0], &byte, 1) > 0) {
    }
    _exit(refused ? 0 : 1);
  }
  close(gate[0]);
  close(running[1]);
  char byte;
  EXPECT_EQ(read(running[0], &byte, 1), 0);
  close(running[0]);
  writer_.reset();
  OpenWriter();  // would be Aborted if the child still held the lock
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
  close(gate[1]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(GroupTest, AForkedChildMayDestroyItsCopyOfTheWriter) {
  const int t = AddTable("t", 16);
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  ASSERT_TSPS_OK(Step(t, keys, 1.0f));  // the thread that reserves ahead is running
  auto own_group = Group::Create(dir_ / "own", kUuid);
  ASSERT_TRUE(own_group.ok());
  ExpectInAChild([&] {
    // Its lock gets the number of the descriptor that the fork handler has closed. The destructor
    // of the copy must not close it again.
    auto own_writer = (*own_group)->OpenWriter();
    writer_.reset();
    return own_writer.ok() && !(*Group::Open(dir_ / "own"))->OpenWriter().ok();
  });
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
}

// Runs loops, but throws std::bad_alloc when a loop begins within a mutation.
class OutOfMemoryInAMutation final : public Executor {
 public:
  explicit OutOfMemoryInAMutation(Group& group) : group_(group) {}
  int threads() const override { return 1; }
  void ParallelFor(size_t n, size_t, const std::function<void(size_t, size_t)>& body) override {
    if (group_.Info().unfinished) throw std::bad_alloc();
    if (n > 0) body(0, n);
  }

 private:
  Group& group_;
};

TEST_F(GroupTest, AnExceptionInAMutationEndsTheWriterAndTheNextOneUndoes) {
  const int t = AddTable("t", 4);
  ASSERT_TSPS_OK(Step(t, {1, 2, 3}, 1.0f));
  const Image image = ReadImage(*group_);
  writer_.reset();
  const pid_t child = fork();
  if (child == 0) {
    alarm(200);
    OpenWriter();
    OutOfMemoryInAMutation executor(*group_);
    const std::vector<int64_t> keys = {1, 2};
    const std::vector<float> gradients(8, 1.0f);
    const float rate = 1.0f;
    try {
      const TableUpdate update = {t, keys.data(), gradients.data(), 2, &rate, 1};
      static_cast<void>(writer_->ApplyStep(2, {update}, executor));
    } catch (const std::bad_alloc&) {
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
  EXPECT_TRUE(group_->Info().unfinished);
  OpenWriter();
  EXPECT_EQ(ReadImage(*group_), image);
  ASSERT_TSPS_OK(Step(t, {1, 2}, 1.0f));
}

TEST_F(GroupTest, AStepOfNoKeysNeedsNoHyperparameters) {
  const int t = AddTable("t", 4, OptimizerKind::kAdam);
  ASSERT_TSPS_OK(writer_->ApplyStep(1, {{t, nullptr, nullptr, 0, nullptr, 0}}, executor_));
  EXPECT_EQ(group_->step(), 1u);
}

TEST_F(GroupTest, WhoMappedOtherSlotsCanBecomeTheWriter) {
  for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kSgd}) {
    SCOPED_TRACE(OptimizerKindName(kind));
    const int t = AddTable(OptimizerKindName(kind), 2, OptimizerKind::kAdagrad);
    ASSERT_TSPS_OK(Step(t, {1, 2}, 1.0f));
    auto reader = Group::Open(dir_ / "g");
    ASSERT_TRUE(reader.ok());
    ASSERT_TSPS_OK(writer_->BindOptimizer(t, {kind, {}}, true));
    const Image image = ReadImage(*group_);
    writer_.reset();
    group_ = *reader;
    OpenWriter();
    ASSERT_NE(writer_, nullptr);
    EXPECT_EQ(ReadImage(*group_), image);
  }
}

TEST_F(GroupTest, AReaderOfRemovedFilesIsToldSo) {
  const int t = AddTable("t", 16);
  auto reader = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader.ok());
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  ASSERT_TSPS_OK(Step(t, keys, 1.0f));
  std::filesystem::remove_all(dir_ / "g");
  const Status status = (*reader)->Read([&](const ReadView& view) {
    const char* row = nullptr;
    view.Find(t, &keys.back(), 1, &row);
    return Status();
  });
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("was removed"), std::string::npos) << status.message();
}

// A job's folder is removed, and another job makes its group there, while the first job still has
// its writer.
TEST_F(GroupTest, AGroupMadeAnewInTheFolderIsLeftAloneByTheOldOnesWriter) {
  const int t = AddTable("t", 16, OptimizerKind::kAdagrad);
  ASSERT_TSPS_OK(Step(t, {1, 2}, 1.0f));
  const std::shared_ptr<Group> old_group = group_;
  const std::unique_ptr<GroupWriter> old_writer = std::move(writer_);
  std::filesystem::remove_all(dir_ / "g");
  Make();
  ASSERT_EQ(AddTable("t", 16, OptimizerKind::kAdagrad), t);
  AddTable("u", 4);
  ASSERT_TSPS_OK(Step(t, {1, 2, 3}, 1.0f));
  const Image image = ReadImage(*group_);

  std::vector<int64_t> keys(200000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const std::vector<float> rows(keys.size() * 16, 1.0f);
  OptimizerConfig adam;
  adam.kind = OptimizerKind::kAdam;
  for (const Status& status :
       {old_writer->Assign(t, keys.data(), rows.data(), nullptr, keys.size(), executor_),
        old_writer->CreateTable(MakeConfig("u", 8, 3)).status(),
        old_writer->BindOptimizer(t, adam, true), old_group->OpenWriter().status()}) {
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.message();
    EXPECT_NE(status.message().find("was replaced"), std::string::npos) << status.message();
  }
  EXPECT_LT(group_->Bytes(), 4u << 20);  // reserved ahead; the old writer's rows would take 12 MiB
  EXPECT_TRUE(ReadImage(*group_) == image);
  Reopen();
  EXPECT_TRUE(ReadImage(*group_) == image);
  ASSERT_TSPS_OK(writer_->Verify());
  // The old group can still be read.
  EXPECT_EQ(old_group->step(), 1u);
  EXPECT_NE(LookupRow(*old_group, t, 1), LookupRow(*group_, t, 3));
}

TEST_F(GroupTest, WaitersWakeWhenTheStepIsPublished) {
  const int t = AddTable("t", 2);
  auto reader = Group::Open(dir_ / "g");
  ASSERT_TRUE(reader.ok());
  Status waited;
  std::thread waiter([&] { waited = (*reader)->WaitForStep(3, 30, nullptr); });
  for (int step = 0; step < 3; ++step) ASSERT_TSPS_OK(Step(t, {step}, 1.0f));
  waiter.join();
  EXPECT_TRUE(waited.ok()) << waited.message();
}

TEST_F(GroupTest, AWaitEndsWithTheDeadWritersPidAndStep) {
  const int t = AddTable("t", 2);
  ASSERT_TSPS_OK(Step(t, {1}, 1.0f));
  writer_.reset();
  const Status status = group_->WaitForStep(2, 30, nullptr);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("pid " + std::to_string(getpid())), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("step 2"), std::string::npos) << status.message();
}

TEST_F(GroupTest, AWaitTimesOutWhileTheWriterLives) {
  EXPECT_EQ(group_->WaitForStep(1, 0.05, nullptr).code(), Code::kDeadlineExceeded);
  std::atomic<bool> cancelled{true};
  EXPECT_EQ(group_->WaitForStep(1, 30, &cancelled).code(), Code::kUnavailable);
}

TEST_F(GroupTest, ReadersBesideAWriterSeeWholeStepsOfAllTables) {
  const int a = AddTable("a", 16);
  const int b = AddTable("b", 16);
  std::vector<int64_t> keys(64);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  const std::vector<float> zeros(keys.size() * 16);
  ASSERT_TSPS_OK(writer_->Assign(a, keys.data(), zeros.data(), nullptr, keys.size(), executor_));
  ASSERT_TSPS_OK(writer_->Assign(b, keys.data(), zeros.data(), nullptr, keys.size(), executor_));
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok());
    std::vector<float> seen(2 * zeros.size());
    while (!stop.load()) {
      uint64_t step = 0;
      ASSERT_TSPS_OK((*group)->Read([&](const ReadView& view) {
        step = view.step();
        std::vector<const char*> rows(keys.size());
        for (int table : {a, b}) {
          view.Find(table, keys.data(), keys.size(), rows.data());
          for (size_t i = 0; i < rows.size(); ++i) {
            float* to = seen.data() + static_cast<size_t>(table) * zeros.size() + i * 16;
            // A row is null only if a mutation interrupts the read, which is then repeated.
            if (rows[i] == nullptr) {
              std::fill_n(to, 16, 1.0f);
            } else {
              RacyRead(to, rows[i], 16 * sizeof(float));
            }
          }
        }
        return Status();
      }));
      // Every step subtracts 1 from every element of both tables.
      for (const float x : seen) torn += x != -static_cast<float>(step);
      ++reads;
    }
  });
  const std::vector<float> ones(zeros.size(), 1.0f);
  const float hyper[] = {1.0f};
  int64_t next_key = 1000;
  while (reads.load() < 50 || group_->step() < 200) {
    std::vector<int64_t> step_keys = keys;
    for (int i = 0; i < 20; ++i) step_keys.push_back(next_key++);  // makes the index grow
    const std::vector<float> gradients(step_keys.size() * 16, 1.0f);
    ASSERT_TSPS_OK(
        writer_->ApplyStep(group_->step() + 1,
                           {{a, step_keys.data(), gradients.data(), step_keys.size(), hyper, 1},
                            {b, keys.data(), ones.data(), keys.size(), hyper, 1}},
                           executor_));
  }
  stop = true;
  reader.join();
  EXPECT_EQ(torn.load(), 0);
}

TEST_F(GroupTest, FilesAreFullyAllocatedAndPrivate) {
  const int t = AddTable("t", 16, OptimizerKind::kAdagrad);
  std::vector<int64_t> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  ASSERT_TSPS_OK(Step(t, keys, 1.0f));
  uint64_t size = 0;
  uint64_t blocks = 0;
  uint64_t reported = 0;
  // The helper thread may still reserve ahead: then the comparison is repeated.
  for (int attempt = 0; attempt < 1000 && (reported == 0 || reported != size || size != blocks);
       ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    size = blocks = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "g")) {
      struct stat info;
      ASSERT_EQ(lstat(entry.path().c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, entry.is_directory() ? 0700u : 0600u) << entry.path();
      if (!entry.is_regular_file()) continue;
      size += static_cast<uint64_t>(info.st_size);
      blocks += static_cast<uint64_t>(info.st_blocks) * 512;
    }
    reported = group_->Bytes();
  }
  EXPECT_EQ(size, blocks);
  EXPECT_EQ(reported, size);
}

// --- Refusals. ---

TEST_F(GroupTest, ForeignTruncatedNewerAndDamagedFilesAreRefusedByWhatTheyAre) {
  AddTable("t", 4);
  writer_.reset();
  group_.reset();
  const auto refusal = [&](const std::string& file,
                           const std::function<void(const std::string&)>& spoil) {
    const std::string copy = dir_ / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(dir_ / "g", copy, std::filesystem::copy_options::recursive);
    std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
    spoil(copy + "/" + file);
    auto group = Group::Open(copy);
    return group.ok() ? std::string("opened") : group.status().message();
  };
  const auto patch = [](std::streamoff at) {
    return [at](const std::string& path) {
      std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(at);
      stream.put('\x7f');
    };
  };
  const auto shorten = [](uintmax_t bytes) {
    return [bytes](const std::string& path) { std::filesystem::resize_file(path, bytes); };
  };
  EXPECT_NE(refusal("group", patch(0)).find("not the control file"), std::string::npos);
  EXPECT_NE(refusal("group", patch(8)).find("format version 127"), std::string::npos);
  EXPECT_NE(refusal("group", patch(20)).find("damaged"), std::string::npos);
  EXPECT_NE(refusal("group", shorten(5000)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal("group", shorten(3)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal("t/config", patch(0)).find("not a table"), std::string::npos);
  EXPECT_NE(refusal("t/config", patch(50)).find("damaged"), std::string::npos);
  EXPECT_NE(refusal("t/segments", shorten(100)).find("truncated"), std::string::npos);
  for (const char* file : {"t/plane.embedding.1", "t/plane.key.1", "t/planes.2"}) {
    const std::string message =
        refusal(file, [](const std::string& path) { unlink(path.c_str()); });
    EXPECT_NE(message.find(file), std::string::npos) << message;
  }
}

TEST_F(GroupTest, SymlinksAreNotFollowed) {
  writer_.reset();
  std::filesystem::create_directory_symlink(dir_ / "g", dir_ / "link");
  auto group = Group::Open(dir_ / "link");
  ASSERT_FALSE(group.ok());
  EXPECT_NE(group.status().message().find("symbolic link"), std::string::npos)
      << group.status().message();
  std::filesystem::rename(dir_ / "g/undo", dir_ / "elsewhere");
  std::filesystem::create_symlink(dir_ / "elsewhere", dir_ / "g/undo");
  EXPECT_EQ(Group::Open(dir_ / "g").status().code(), Code::kPermissionDenied);
}

TEST_F(GroupTest, AnotherUsersGroupIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  writer_.reset();
  ASSERT_EQ(chown((dir_ / "g").c_str(), 12345, 12345), 0);
  auto group = Group::Open(dir_ / "g");
  ASSERT_FALSE(group.ok());
  EXPECT_NE(group.status().message().find("belongs to user 12345"), std::string::npos)
      << group.status().message();
}

TEST_F(GroupTest, ATableOfAnotherUuidIsRefused) {
  const int t = AddTable("t", 4);
  EXPECT_TRUE(group_->CheckUuid(t, "").ok());
  EXPECT_TRUE(group_->CheckUuid(t, ConfigOf(*group_, t).uuid).ok());
  EXPECT_EQ(group_->CheckUuid(t, std::string(32, '0')).code(), Code::kFailedPrecondition);
}

TEST_F(GroupTest, BadTableConfigurationsNameTheValue) {
  const auto refused = [&](const std::function<void(TableConfig&)>& spoil) {
    TableConfig config = MakeConfig("x", 4);
    spoil(config);
    return writer_->CreateTable(config).status().message();
  };
  EXPECT_NE(refused([](TableConfig& c) { c.name = "a/b"; }).find("'a/b'"), std::string::npos);
  EXPECT_NE(refused([](TableConfig& c) { c.name = "../x"; }).find("'../x'"), std::string::npos);
  EXPECT_NE(refused([](TableConfig& c) { c.name = "undo"; }).find("'undo'"), std::string::npos);
  EXPECT_NE(refused([](TableConfig& c) { c.dim = 0; }).find("Received: 0"), std::string::npos);
  EXPECT_NE(refused([](TableConfig& c) { c.uuid = "xyz"; }).find("'xyz'"), std::string::npos);
}

}  // namespace
}  // namespace tsps
