// Crash consistency of a group. A writer is killed at named points of its mutations, and the next
// writer at named points of the recovery. After each kill a reader (which cannot roll back) and a
// writer (which can) must both see the state after a whole mutation: the last committed one or the
// one in progress.
//
// The expected states come from the same sequence of mutations by a writer that is not killed.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>

#include "core/table/layout.h"
#include "tests/group_fixture.h"
#include "tests/killed_at.h"
#include "tests/mutation_sequence.h"

#ifdef TFSPS_FAULT_POINTS

namespace tsps {
namespace {

class CrashTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { expected_ = StatesOfTheSequence(&first_); }

  void MakeGroup() {
    auto group = Group::Create(Path(), kUuid);
    ASSERT_TRUE(group.ok()) << group.status().message();
    auto writer = (*group)->OpenWriter();
    ASSERT_TRUE(writer.ok());
    ASSERT_TSPS_OK(SetUpGroup(**writer));
  }

  // Opens the group as its writer and makes the rest of the sequence.
  void Work() const {
    auto group = Group::Open(Path());
    if (!group.ok()) _exit(10);
    auto writer = (*group)->OpenWriter();
    if (!writer.ok()) _exit(11);
    for (int i = static_cast<int>(MutationsDone(**group) - first_); i < kMutations; ++i) {
      if (!Mutate(**group, **writer, i).ok()) _exit(12);
    }
  }

  // Expects the state after the number of mutations that the group has committed.
  void ExpectWhole(const std::string& when) {
    auto group = Group::Open(Path());
    ASSERT_TRUE(group.ok()) << when << ": " << group.status().message();
    const uint64_t done = MutationsDone(**group);
    ASSERT_GE(done, first_) << when;
    ASSERT_LE(done - first_, static_cast<uint64_t>(kMutations)) << when;
    EXPECT_TRUE(ReadImage(**group) == expected_[done - first_])
        << when << ": torn at mutation " << done - first_;
    for (const int64_t absent : {int64_t{-1}, int64_t{INT64_MIN}}) {
      std::vector<float> initial(4);
      InitialRow(ConfigOf(**group, 0).initializer, absent, 4, initial.data());
      EXPECT_EQ(LookupRow(**group, 0, absent), initial) << when;
    }
  }

  std::string Path() const { return dir_ / "g"; }

  TempDir dir_;
  static std::vector<Image> expected_;
  static uint64_t first_;
};

std::vector<Image> CrashTest::expected_;
uint64_t CrashTest::first_ = 0;

class KillPointTest : public CrashTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(KillPointTest, EveryKillLeavesAWholeMutation) {
  MakeGroup();
  int kills = 0;
  long n = 1;
  // One writer of the group after another is killed, each later than the one before, until one
  // finishes the sequence.
  while (KilledAt(GetParam(), n, [&] { Work(); })) {
    ++kills;
    const std::string when = std::string(GetParam()) + ":" + std::to_string(n);
    ExpectWhole(when + ", seen by a reader");
    if (HasFatalFailure()) return;
    // The recovery is killed as well, if it passes the point.
    for (const char* point :
         {"recovery.row", "recovery.insert", "recovery.segment", "publish.record"}) {
      if (KilledAt(point, 1 + kills % 5, [&] {
            auto group = Group::Open(Path());
            auto writer = (*group)->OpenWriter();
          })) {
        ExpectWhole(when + " and " + point);
        if (HasFatalFailure()) return;
      }
    }
    auto group = Group::Open(Path());
    ASSERT_TRUE(group.ok());
    auto writer = (*group)->OpenWriter();
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TSPS_OK((*writer)->Verify());
    writer->reset();
    ExpectWhole(when + ", after recovery");
    if (HasFatalFailure()) return;
    n += 1 + n;
  }
  ExpectWhole("at the end");
  auto group = Group::Open(Path());
  EXPECT_EQ(MutationsDone(**group) - first_, static_cast<uint64_t>(kMutations));
  EXPECT_GE(kills, 2) << "the writer passes the point too rarely";
}

INSTANTIATE_TEST_SUITE_P(Points, KillPointTest,
                         ::testing::Values("undo.reserved", "undo.record", "undo.block",
                                           "begin.undo_valid", "begin.odd", "apply.row",
                                           "assign.row", "erase.entry", "commit.insert",
                                           "publish.record", "publish.even", "split.undo",
                                           "split.rebuilt", "split.directory", "double.directory",
                                           "reserve.grown"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_F(CrashTest, AKilledTableCreationLeavesNoTable) {
  MakeGroup();
  const auto create = [&] {
    auto group = Group::Open(Path());
    auto writer = (*group)->OpenWriter();
    if (!(*writer)->CreateTable(MakeConfig("late", 3, 2)).ok()) _exit(13);
  };
  for (const char* point : {"create.files", "begin.odd", "publish.record"}) {
    ASSERT_TRUE(KilledAt(point, 1, create));
    auto group = Group::Open(Path());
    ASSERT_TRUE(group.ok()) << group.status().message();
    EXPECT_EQ(CountTables(**group), 2u) << point;
  }
  ASSERT_FALSE(KilledAt("none", 1, create));
  EXPECT_EQ(CountTables(**Group::Open(Path())), 3u);
}

// After a kill the removed table is either complete or absent. In both cases the other tables are
// complete, and so is the table that takes its place.
TEST_F(CrashTest, AKilledRemovalLeavesTheOthersWhole) {
  const std::vector<int64_t> keys = {1, 2, 3, 5, 8};
  const std::vector<float> rows(keys.size() * 5, 0.25f);
  const auto add = [&](GroupWriter& writer, const std::string& name) -> Status {
    SerialExecutor serial;
    OptimizerConfig adam;
    adam.kind = OptimizerKind::kAdam;
    TSPS_ASSIGN_OR_RETURN(const int table, writer.CreateTable(MakeConfig(name, 5, 3)));
    TSPS_RETURN_IF_ERROR(writer.BindOptimizer(table, adam, false));
    return writer.Assign(table, keys.data(), rows.data(), nullptr, keys.size(), serial);
  };
  const auto remove = [&] {
    auto group = Group::Open(Path());
    if (!group.ok()) _exit(20);
    auto writer = (*group)->OpenWriter();
    if (!writer.ok()) _exit(21);
    auto table = (*group)->FindTable("going");
    if (table.ok() && !(*writer)->RemoveTable(*table).ok()) _exit(22);
    if (!(*group)->FindTable("coming").ok() && !add(**writer, "coming").ok()) _exit(23);
  };
  int kills = 0;
  for (const char* point : {"begin.undo_valid", "begin.odd", "publish.record", "publish.even",
                            "remove.published", "remove.file", "remove.config", "create.files"}) {
    for (long n = 1; true; ++n) {
      dir_.Clear();
      MakeGroup();
      Image before;
      int removed_table = 0;
      {
        auto group = Group::Open(Path());
        auto writer = (*group)->OpenWriter();
        ASSERT_TRUE(writer.ok());
        ASSERT_TSPS_OK(add(**writer, "going"));
        for (int i = 0; i < 3; ++i) ASSERT_TSPS_OK(Mutate(**group, **writer, i));
        before = ReadImage(**group);
        removed_table = *(*group)->FindTable("going");
      }
      const std::string when = std::string(point) + ":" + std::to_string(n);
      const bool killed = KilledAt(point, n, remove);
      kills += killed;
      const auto expect_whole = [&](Group& group, const std::string& observer) {
        Image image = ReadImage(group);
        const bool present = group.FindTable("going").ok();
        const auto added_table = group.FindTable("coming");
        EXPECT_TRUE(!added_table.ok() || *added_table == removed_table + kMaxTables)
            << when << observer;
        image.tables.resize(before.tables.size());
        if (!present) image.tables[PlaceOf(removed_table)] = before.tables[PlaceOf(removed_table)];
        EXPECT_TRUE(image == before) << when << observer;
      };
      {
        auto reader = Group::Open(Path());
        ASSERT_TRUE(reader.ok()) << when << ": " << reader.status().message();
        expect_whole(**reader, ", seen by a reader");
      }
      // The next writer may be killed as well.
      const bool killed_again = KilledAt("remove.file", 1 + kills % 3, remove);
      auto group = Group::Open(Path());
      ASSERT_TRUE(group.ok()) << when << ": " << group.status().message();
      auto writer = (*group)->OpenWriter();
      ASSERT_TRUE(writer.ok()) << when << ": " << writer.status().message();
      ASSERT_TSPS_OK((*writer)->Verify());
      expect_whole(**group, ", seen by the next writer");
      EXPECT_EQ(std::filesystem::exists(Path() + "/going"), (*group)->FindTable("going").ok())
          << when;
      EXPECT_TRUE(killed_again || (*group)->FindTable("coming").ok()) << when;
      ASSERT_TSPS_OK(Mutate(**group, **writer, 3));
      ASSERT_TSPS_OK((*writer)->Verify());
      if (!killed) break;
    }
  }
  EXPECT_GE(kills, 14);
}

TEST_F(CrashTest, AKilledReplacementOfAnOptimizerLeavesNoSlotsBehind) {
  const auto slots = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Path() + "/b")) {
      const std::string name = entry.path().filename();
      if (name.rfind("plane", 0) == 0 && name.rfind(".1") != name.size() - 2) names.insert(name);
    }
    return names;
  };
  for (const auto& [point, left, kept] :
       {std::tuple{"bind.files", 5u, std::set<std::string>{"plane.m.2", "plane.v.2", "planes.2"}},
        {"publish.record", 5u, {"plane.m.2", "plane.v.2", "planes.2"}},
        {"bind.published", 5u, {"plane.accumulator.3", "planes.3"}}}) {
    dir_.Clear();
    MakeGroup();
    ASSERT_TRUE(KilledAt(point, 1, [&] {
      auto group = Group::Open(Path());
      auto writer = (*group)->OpenWriter();
      OptimizerConfig adagrad;
      adagrad.kind = OptimizerKind::kAdagrad;
      if (!(*writer)->BindOptimizer(1, adagrad, true).ok()) _exit(13);
    }));
    EXPECT_EQ(slots().size(), left) << point;
    auto group = Group::Open(Path());
    ASSERT_TRUE(group.ok()) << group.status().message();
    EXPECT_EQ(slots().size(), left) << point << ", seen by a reader";
    auto writer = (*group)->OpenWriter();
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    EXPECT_EQ(slots(), kept) << point;
    ASSERT_TSPS_OK((*writer)->Verify());
  }
}

// A reader that undoes a dead writer's mutation in its view reads the undo log, which the next
// writer overwrites. The reader must notice that, and read again.
TEST_F(CrashTest, AReaderBehindADeadWriterOutlivesTheNextOne) {
  for (const long n : {3000, 6000, 9000}) {
    dir_.Clear();
    MakeGroup();
    ASSERT_TRUE(KilledAt("commit.insert", n, [&] { Work(); }));
    auto group = Group::Open(Path());
    ASSERT_TRUE(group.ok()) << group.status().message();
    ASSERT_TRUE((*group)->Info().unfinished);
    int reads = 0;
    Image image;
    ASSERT_TSPS_OK((*group)->Read([&](const ReadView& view) {
      if (++reads == 1) {
        auto next = Group::Open(Path());
        TSPS_ASSIGN_OR_RETURN(auto writer, (*next)->OpenWriter());
        for (int i = 0; i < 5; ++i) {
          const auto done = static_cast<int>(MutationsDone(**next) - first_);
          TSPS_RETURN_IF_ERROR(Mutate(**next, *writer, done));
        }
      }
      image = ImageOf(**group, view);
      return Status();
    }));
    EXPECT_EQ(reads, 2) << n;
    EXPECT_TRUE(image == expected_[MutationsDone(**group) - first_]) << n;
  }
}

// The control of these tests: without the undo log, kills in the middle of an update are visible.
TEST_F(CrashTest, WithoutTheUndoLogTheHarnessFindsTornRows) {
  setenv("TFSPS_FAULT_OFF", "undo", 1);
  MakeGroup();
  int torn = 0;
  for (long n = 30; n < 20000 && torn == 0; n += n / 2) {
    if (!KilledAt("apply.row", n, [&] { Work(); })) break;
    const bool whole = !KilledAt("none", 1, [&] {
      auto group = Group::Open(Path());
      auto writer = (*group)->OpenWriter();
      const uint64_t done = MutationsDone(**group) - first_;
      if (!(ReadImage(**group) == expected_[done])) kill(getpid(), SIGKILL);
    });
    torn += !whole;
  }
  unsetenv("TFSPS_FAULT_OFF");
  EXPECT_GT(torn, 0);
}

}  // namespace
}  // namespace tsps

#endif  // TFSPS_FAULT_POINTS
