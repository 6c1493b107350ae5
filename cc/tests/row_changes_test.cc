// Updates, writes and erases of rows in one commit, and commits whose outcome others decide.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "core/group/layout.h"
#include "core/group/row_gather.h"
#include "core/group/scan.h"
#include "tests/file_values.h"
#include "tests/group_fixture.h"
#include "tests/killed_at.h"

namespace tsps {
namespace {

constexpr size_t kDim = 2;
constexpr float kRate[] = {1.0f};

// What one commit does to a table, and what it points to.
struct Commit {
  std::vector<int64_t> updated, set, erased;
  std::vector<float> gradients, rows;

  RowChanges Changes(int table, std::optional<uint64_t> step) const {
    RowChanges changes;
    changes.step = step;
    if (!updated.empty()) {
      changes.updates.push_back(
          {table, updated.data(), gradients.data(), updated.size(), kRate, 1});
    }
    if (!set.empty()) {
      const PlaneValues values{PlaneRole::kEmbedding, "embedding", kDim * sizeof(float),
                               rows.data()};
      changes.writes.push_back({table, set.data(), set.size(), {values}});
    }
    if (!erased.empty()) changes.erases.push_back({table, erased.data(), erased.size()});
    return changes;
  }
};

class RowChangesTest : public GroupTest {
 protected:
  using Rows = std::map<int64_t, std::vector<float>>;

  void SetUp() override {
    GroupTest::SetUp();
    table_ = AddTable("t", kDim);
  }

  Commit Draw(std::mt19937& random, bool step) {
    Commit commit;
    std::vector<int64_t> keys(400);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    std::shuffle(keys.begin(), keys.end(), random);
    const auto take = [&](size_t n) {
      const std::vector<int64_t> taken(keys.end() - static_cast<ptrdiff_t>(n), keys.end());
      keys.resize(keys.size() - n);
      return taken;
    };
    if (step) commit.updated = take(random() % 60);
    commit.set = take(random() % 20);
    commit.erased = take(random() % 60);
    for (size_t i = 0; i < commit.updated.size() * kDim; ++i) {
      commit.gradients.push_back(static_cast<float>(random() % 64) / 8);
    }
    for (size_t i = 0; i < commit.set.size() * kDim; ++i) {
      commit.rows.push_back(static_cast<float>(random() % 64));
    }
    return commit;
  }

  void Apply(const Commit& commit, Rows* model) {
    const TableConfig config = ConfigOf(*group_, table_);
    for (size_t i = 0; i < commit.updated.size(); ++i) {
      auto& row = (*model)[commit.updated[i]];
      if (row.empty()) {
        row.resize(kDim);
        InitialRow(config.initializer, commit.updated[i], kDim, row.data());
      }
      for (size_t d = 0; d < kDim; ++d) row[d] -= commit.gradients[i * kDim + d];
    }
    for (size_t i = 0; i < commit.set.size(); ++i) {
      const auto from = commit.rows.begin() + static_cast<ptrdiff_t>(i * kDim);
      (*model)[commit.set[i]] = {from, from + kDim};
    }
    for (const int64_t key : commit.erased) model->erase(key);
  }

  Rows Now() { return ReadImage(*group_).tables[0]; }

  int table_ = 0;
};

TEST_F(RowChangesTest, CommitsOfAllKindsAreThoseOfAModel) {
  std::mt19937 random(3);
  Rows model;
  for (int i = 0; i < 300; ++i) {
    const bool step = random() % 3 != 0;
    const Commit commit = Draw(random, step);
    const GroupInfo before = group_->Info();
    const auto number = step ? std::optional<uint64_t>(before.step + 1) : std::nullopt;
    ASSERT_TSPS_OK(writer_->Prepare(commit.Changes(table_, number), executor_));
    if (i % 7 == 3) {  // another way out
      if (i % 2 == 0) writer_->Write();
      writer_->Abort();
      ASSERT_TRUE(Now() == model) << i;
      ASSERT_EQ(group_->Info().step, before.step);
      ASSERT_EQ(group_->Info().version, before.version);
      continue;
    }
    writer_->Publish();
    Apply(commit, &model);
    ASSERT_TRUE(Now() == model) << i;
    EXPECT_EQ(group_->Info().step, before.step + (step ? 1 : 0));
    EXPECT_EQ(group_->Info().version, before.version + (step ? 0 : 1)) << "demotions are a step's";
    if (i % 20 == 0) ASSERT_TSPS_OK(writer_->Verify());
  }
  ASSERT_TSPS_OK(writer_->Verify());
  Reopen();
  EXPECT_TRUE(Now() == model);
  // Rows that became free are used again, also by commits that free others.
  EXPECT_LT(group_->Bytes(), 4u << 20);
}

TEST_F(RowChangesTest, AKeyIsInOnePartAtMost) {
  ASSERT_TSPS_OK(Step(table_, {1, 2, 3}, 1.0f));
  const Image before = ReadImage(*group_);
  const std::vector<float> values(8, 1.0f);
  const auto refused = [&](const Commit& commit) {
    const Status status = writer_->Prepare(commit.Changes(table_, group_->step() + 1), executor_);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_TRUE(ReadImage(*group_) == before);
    return status.message();
  };
  EXPECT_NE(refused({{1, 2}, {2}, {}, values, values}).find("key 2 is there twice"),
            std::string::npos);
  EXPECT_NE(refused({{9}, {9}, {}, values, values}).find("key 9 is there twice"),
            std::string::npos);
  EXPECT_NE(refused({{1, 2}, {}, {3, 1}, values, values}).find("key 1 is changed and erased"),
            std::string::npos);
  EXPECT_NE(refused({{}, {7}, {7}, values, values}).find("key 7 is changed and erased"),
            std::string::npos);
  const Commit update{{1}, {}, {}, values, values};
  EXPECT_EQ(writer_->Prepare(update.Changes(table_, std::nullopt), executor_).code(),
            Code::kInvalidArgument);
  ASSERT_TSPS_OK(Step(table_, {1, 2, 3}, 1.0f));
}

TEST_F(RowChangesTest, RowsThatGoMakeRoomUnderALimit) {
  TableConfig config = MakeConfig("limited", kDim, 1);
  config.max_rows = 3;
  const auto limited = writer_->CreateTable(config);
  ASSERT_TRUE(limited.ok());
  const std::vector<float> rows(8, 1.0f);
  const Commit three{{}, {1, 2, 3}, {}, {}, rows};
  ASSERT_TSPS_OK(writer_->Prepare(three.Changes(*limited, std::nullopt), executor_));
  writer_->Publish();
  const Commit two{{}, {4, 5}, {1}, {}, rows};
  EXPECT_EQ(writer_->Prepare(two.Changes(*limited, std::nullopt), executor_).code(),
            Code::kResourceExhausted);
  const Commit one{{}, {4}, {1}, {}, rows};
  ASSERT_TSPS_OK(writer_->Prepare(one.Changes(*limited, std::nullopt), executor_));
  writer_->Publish();
  ASSERT_TSPS_OK(writer_->Verify());
}

// As many as there are, in files without a page to spare.
TEST_F(RowChangesTest, AFullTableCanTakeAllOtherRows) {
  TableConfig config = MakeConfig("full", 64, 1);
  config.max_rows = 1000;
  const auto full = writer_->CreateTable(config);
  ASSERT_TRUE(full.ok());
  const std::vector<float> rows(1000 * 64, 1.0f);
  std::vector<int64_t> keys(1000), others(1000);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int64_t>(i);
    others[i] = static_cast<int64_t>(i + 1000);
  }
  SerialExecutor serial;
  ASSERT_TSPS_OK(writer_->Assign(*full, keys.data(), rows.data(), nullptr, keys.size(), serial));
  for (int i = 0; i < 4; ++i) {
    RowChanges changes;
    const PlaneValues values{PlaneRole::kEmbedding, "embedding", 64 * sizeof(float), rows.data()};
    changes.writes.push_back({*full, others.data(), others.size(), {values}});
    changes.erases.push_back({*full, keys.data(), keys.size()});
    ASSERT_TSPS_OK(writer_->Prepare(changes, serial));
    writer_->Publish();
    keys.swap(others);
  }
  ASSERT_TSPS_OK(writer_->Verify());
}

#ifdef TFSPS_FAULT_POINTS

class SealedTest : public RowChangesTest {
 protected:
  void SetUp() override {
    RowChangesTest::SetUp();
    std::vector<int64_t> keys(300);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    ASSERT_TSPS_OK(Step(table_, keys, 1.0f));
    before_ = ReadImage(*group_);
    writer_.reset();
    std::mt19937 random(5);
    commit_ = Draw(random, true);
    Rows after = before_.tables[0];
    Apply(commit_, &after);
    after_ = before_;
    after_.step = 2;
    after_.tables[0] = after;
    ASSERT_FALSE(before_ == after_);
  }
  // A writer that seals the commit for `peers` and is killed at a point.
  void KillAt(const std::string& point, uint32_t peers) {
    ASSERT_TRUE(KilledAt(point, 1, [&] {
      auto group = Group::Open(dir_ / "g");
      auto writer = (*group)->OpenWriter();
      const Status prepared = (*writer)->Prepare(commit_.Changes(table_, 2), executor_);
      if (!prepared.ok()) _exit(11);
      (*writer)->Write();
      (*writer)->Seal({2, 77, peers});
      (*writer)->Publish();
    }));
    // Whoever reads meanwhile sees the state before.
    auto reader = Group::Open(dir_ / "g");
    ASSERT_TRUE(reader.ok());
    EXPECT_TRUE(ReadImage(**reader) == (point == "publish.even" ? after_ : before_));
  }
  Status Open(Undecided outcome) {
    auto group = Group::Open(dir_ / "g");
    if (!group.ok()) return group.status();
    group_ = *group;
    auto writer = group_->OpenWriter(outcome);
    if (!writer.ok()) return writer.status();
    const Status verified = (*writer)->Verify();
    if (!verified.ok()) return verified;
    // And it can be trained on.
    image_ = ReadImage(*group_);
    writer_ = std::move(*writer);
    const Status stepped = Step(table_, {1, 1000}, 1.0f);
    writer_.reset();
    return stepped;
  }

  Commit commit_;
  Image before_, after_, image_;
};

TEST_F(SealedTest, WithoutPeersItIsUndone) {
  KillAt("seal.sealed", 1);
  ASSERT_TSPS_OK(Open(Undecided::kRefuse));
  EXPECT_TRUE(image_ == before_);
}

TEST_F(SealedTest, WithPeersItIsTheirsToDecide) {
  for (const Undecided outcome : {Undecided::kUndo, Undecided::kPublish}) {
    KillAt("seal.sealed", 3);
    auto group = Group::Open(dir_ / "g");
    const auto sealed = (*group)->Info().sealed;
    ASSERT_TRUE(sealed.has_value());
    EXPECT_EQ(sealed->step, 2u);
    EXPECT_EQ(sealed->run_id, 77u);
    EXPECT_EQ(sealed->peers, 3u);
    const auto refused = (*group)->OpenWriter();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(refused.status().message().find("3 groups of run 77"), std::string::npos);
    ASSERT_TSPS_OK(Open(outcome));
    EXPECT_TRUE(image_ == (outcome == Undecided::kUndo ? before_ : after_));
    EXPECT_FALSE(group_->Info().sealed.has_value());
    if (outcome == Undecided::kUndo) {  // once more, from the start
      dir_.Clear();
      SetUp();
    }
  }
}

TEST_F(SealedTest, AWriterThatEndsLeavesItToTheNextOne) {
  for (const Undecided outcome : {Undecided::kUndo, Undecided::kPublish}) {
    auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok());
    {
      auto writer = (*group)->OpenWriter();
      ASSERT_TRUE(writer.ok()) << writer.status().message();
      (*writer)->SetRun(78);
      ASSERT_TSPS_OK((*writer)->Prepare(commit_.Changes(table_, 2), executor_));
      (*writer)->Write();
      EXPECT_FALSE((*writer)->sealed());
      (*writer)->Seal({2, 77, 2});
      EXPECT_TRUE((*writer)->sealed());
      // What is undecided is in the way of everything else.
      EXPECT_EQ((*writer)->SetStep(7).code(), Code::kFailedPrecondition);
    }
    EXPECT_TRUE(ReadImage(**group) == before_);
    EXPECT_EQ((*group)->Info().run_id, 78u);
    EXPECT_EQ((*group)->Info().sealed->step, 2u);
    EXPECT_FALSE((*group)->OpenWriter().ok());
    ASSERT_TSPS_OK(Open(outcome));
    EXPECT_TRUE(image_ == (outcome == Undecided::kUndo ? before_ : after_));
    if (outcome == Undecided::kUndo) {  // once more, from the start
      dir_.Clear();
      SetUp();
    }
  }
}

TEST_F(SealedTest, WhatIsNotSealedYetIsUndoneAndWhatIsPublishedStays) {
  KillAt("seal.record", 3);
  ASSERT_TSPS_OK(Open(Undecided::kRefuse));
  EXPECT_TRUE(image_ == before_);
  dir_.Clear();
  SetUp();
  KillAt("publish.even", 3);
  ASSERT_TSPS_OK(Open(Undecided::kRefuse));
  EXPECT_TRUE(image_ == after_);
}

TEST_F(SealedTest, WhatIsNotSealedIsUndoneWhateverOthersHaveDecided) {
  KillAt("seal.record", 3);
  ASSERT_TSPS_OK(Open(Undecided::kPublish));
  EXPECT_TRUE(image_ == before_);
}

// Another group is killed between the vote and the publication of step 2, and this one, which has
// published it, in a change of its own after that. The other one is told to publish, and so is this
// one.
TEST_F(SealedTest, AGroupThatHasPublishedTheStepUndoesWhatItHasBegunSince) {
  ASSERT_TRUE(KilledAt("begin.odd", 2, [&] {
    auto group = Group::Open(dir_ / "g");
    auto writer = (*group)->OpenWriter();
    if (!(*writer)->Prepare(commit_.Changes(table_, 2), executor_).ok()) _exit(11);
    (*writer)->Write();
    (*writer)->Seal({2, 77, 2});
    (*writer)->Publish();
    static_cast<void>((*writer)->MarkChanges());
  }));
  auto group = Group::Open(dir_ / "g");
  ASSERT_TRUE(group.ok());
  ASSERT_TRUE((*group)->Info().unfinished);
  ASSERT_EQ((*group)->Info().step, 2u);
  ASSERT_FALSE((*group)->Info().sealed.has_value());
  ASSERT_TSPS_OK(Open(Undecided::kPublish));
  EXPECT_TRUE(image_ == after_);
}

// A kill while new keys are taken back: the next recovery finds some of them gone, and counts of
// entries that are not right.
TEST_F(SealedTest, AKilledUndoOfNewKeysIsFinished) {
  commit_ = Commit();
  for (int64_t key = 0; key < 900; ++key) commit_.updated.push_back(key * 7919);
  commit_.gradients.assign(commit_.updated.size() * kDim, 1.0f);
  for (const auto& [point, n] : std::vector<std::pair<std::string, long>>{
           {"recovery.insert", 1}, {"recovery.insert", 400}, {"recovery.recount", 1}}) {
    KillAt("seal.sealed", 2);
    ASSERT_TRUE(KilledAt(point, n, [&] {
      auto again = Group::Open(dir_ / "g");
      static_cast<void>((*again)->OpenWriter(Undecided::kUndo));
    }));
    ASSERT_TSPS_OK(Open(Undecided::kRefuse));
    EXPECT_TRUE(image_ == before_) << point;
    dir_.Clear();
    const Commit commit = commit_;
    SetUp();
    commit_ = commit;
  }
}

TEST_F(SealedTest, ASealThatCannotBeReadIsNotTakenForNone) {
  KillAt("seal.sealed", 3);
  const size_t peers = kLiveOffset + offsetof(LiveState, sealed) + offsetof(SealedState, peers);
  SetValueAt(dir_ / "g/group", peers, uint32_t{1});
  for (const Undecided outcome : {Undecided::kRefuse, Undecided::kPublish}) {
    const Status refused = Open(outcome);
    EXPECT_EQ(refused.code(), Code::kDataLoss);
    EXPECT_NE(refused.message().find("who decides step 2"), std::string::npos) << refused.message();
  }
  ASSERT_TSPS_OK(Open(Undecided::kUndo));
  EXPECT_TRUE(image_ == before_);
}

#endif  // TFSPS_FAULT_POINTS

}  // namespace
}  // namespace tsps
