// Admission beside a plain model of it, with and without eviction.
#include <algorithm>
#include <random>
#include <vector>

#include "core/group/scan.h"
#include "core/table/admission_sketch.h"
#include "tests/killed_at.h"
#include "tests/table_life.h"

namespace tsps {
namespace {

struct Case {
  const char* name;
  uint32_t count, half_life;
  uint64_t lines, max_rows;
  uint64_t in_memory = 0;  // rows of a tiered table; 0: all
};

EvictionPolicy EvictionOf(const Case& c) {
  EvictionPolicy policy;
  policy.max_rows = c.max_rows;
  policy.order = EvictionPolicy::Order::kLeastFrequent;
  policy.half_life = 9;
  policy.keep = {1};
  return policy;
}

std::vector<uint32_t> OccurrencesOf(const std::vector<int64_t>& keys, uint64_t step) {
  std::mt19937_64 random(step);
  std::vector<uint32_t> occurrences(keys.size());
  for (uint32_t& n : occurrences)
    n = 1 + static_cast<uint32_t>(random() % 8 == 0 ? random() % 20 : 0);
  return occurrences;
}

class AdmissionTest : public TableLifeTest {};
class AdmissionModelTest : public AdmissionTest, public ::testing::WithParamInterface<Case> {};

TEST_P(AdmissionModelTest, EveryStateIsThatOfTheModel) {
  const AdmissionPolicy policy = {GetParam().count, GetParam().half_life, GetParam().lines};
  const EvictionPolicy eviction = EvictionOf(GetParam());
  const int table = AddEvicting(eviction, GetParam().in_memory);
  SetAdmission(table, policy);
  Model model(eviction, StatsOf(table).index_seed);
  model.SetAdmission(policy, SketchSeed(table));
  for (uint64_t step = 1; step <= 120; ++step) {
    const std::string when = "step " + std::to_string(step);
    const std::vector<int64_t> keys = KeysOf(step, 500);
    const std::vector<uint32_t> occurrences =
        step % 2 == 0 ? OccurrencesOf(keys, step) : std::vector<uint32_t>();
    ASSERT_TSPS_OK(Train(table, keys, 0.5f, occurrences));
    model.Step(step, keys, 0.5f, occurrences);
    Expect(table, model, when);
    if (HasFatalFailure()) return;
    if (step % 10 == 4) {  // an assign adds rows without a count
      const std::vector<int64_t> set = KeysOf(1000 + step, 20);
      const std::vector<float> rows(set.size() * kDim, 1.0f);
      ASSERT_TSPS_OK(
          writer_->Assign(table, set.data(), rows.data(), nullptr, set.size(), executor_));
      model.Assign(step, set, 1.0f);
    }
    if (step == 70) {
      Reopen();
      SetPolicy(table, eviction);
      SetAdmission(table, policy);
    }
  }
  ASSERT_TSPS_OK(writer_->Verify());
  EXPECT_GT(model.admitted(), 100u);
  EXPECT_GT(model.dropped(), 100u);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, AdmissionModelTest,
    ::testing::Values(Case{"three", 3, 1000, 500, 0}, Case{"small_sketch", 4, 10, 3, 0},
                      Case{"wide_cells", 20, 50, 300, 0}, Case{"most_narrow", 15, 50, 300, 0},
                      Case{"with_eviction", 2, 30, 200, 1500}, Case{"tiered", 4, 30, 200, 0, 1000},
                      Case{"tiered_with_eviction", 2, 30, 200, 2500, 1000}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(AdmissionTest, AKeyIsTrainedInTheStepThatAdmitsIt) {
  const int table = AddEvicting(EvictionPolicy());
  SetAdmission(table, {3, 1000, 10});
  std::vector<float> row(kDim);
  InitialRow(EvictingConfig(), 7, row.data());
  for (int step = 0; step < 2; ++step) {
    ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
    EXPECT_EQ(LookupRow(*group_, table, 7), row);
    EXPECT_EQ(StatsOf(table).rows, 0u);
  }
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
  for (float& value : row) value -= kRate;
  EXPECT_EQ(LookupRow(*group_, table, 7), row);
  ASSERT_TSPS_OK(Train(table, {8}, 1.0f, {3}));  // three times in one batch
  EXPECT_EQ(StatsOf(table).rows, 2u);
  EXPECT_EQ(StatsOf(table).dropped, 2u);
}

TEST_F(AdmissionTest, AnErasedKeyIsCountedFromItsSketch) {
  const int table = AddEvicting(EvictionPolicy());
  SetAdmission(table, {3, 1000, 10});
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f, {5}));
  const int64_t key = 7;
  ASSERT_TRUE(writer_->Erase(table, &key, 1).ok());
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
  EXPECT_EQ(StatsOf(table).rows, 1u) << "it occurred often until a short time ago";
}

TEST_F(AdmissionTest, ARefusedStepCountsNothing) {
  const int table = AddEvicting(EvictionPolicy());
  SetAdmission(table, {2, 1000, 10});
  EXPECT_FALSE(Train(table, {7}, std::numeric_limits<float>::infinity()).ok());
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
  EXPECT_EQ(StatsOf(table).rows, 0u);
}

TEST_F(AdmissionTest, ASketchIsReplacedByOneOfAnotherFormAndRemovedWithItsTable) {
  const int table = AddEvicting(EvictionPolicy());
  const auto set = [&](const AdmissionPolicy& policy) {
    const auto forgotten = writer_->SetAdmission(table, std::make_shared<AdmissionPolicy>(policy));
    EXPECT_TRUE(forgotten.ok()) << forgotten.status().message();
    return forgotten.ok() && *forgotten;
  };
  EXPECT_FALSE(set({15, 10, 4}));
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
  EXPECT_FALSE(set({2, 20, 4})) << "the same form";
  EXPECT_TRUE(set({16, 10, 4})) << "wider cells";
  EXPECT_FALSE(set({16, 10, 5})) << "more lines, and nothing was counted";
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
  const auto forgotten = writer_->SetAdmission(table, nullptr);
  EXPECT_TRUE(forgotten.ok() && *forgotten);
  EXPECT_FALSE(group_->FindTable("t.sketch").ok());
  ASSERT_TSPS_OK(Train(table, {7}, 1.0f));
  EXPECT_EQ(StatsOf(table).rows, 1u) << "nothing is counted any more";
  EXPECT_FALSE(set({2, 10, 4}));
  EXPECT_TRUE(group_->FindTable("t.sketch").ok());
  ASSERT_TSPS_OK(writer_->RemoveTable(table));
  EXPECT_FALSE(group_->FindTable("t.sketch").ok());
}

TEST_F(AdmissionTest, OtherNumbersAndATableOfTheSketchsNameAreRefused) {
  const int table = AddEvicting(EvictionPolicy());
  const auto code = [&](const AdmissionPolicy& policy) {
    return writer_->SetAdmission(table, std::make_shared<AdmissionPolicy>(policy)).status().code();
  };
  EXPECT_EQ(code({1, 10, 4}), Code::kInvalidArgument);
  EXPECT_EQ(code({256, 10, 4}), Code::kInvalidArgument);
  EXPECT_EQ(code({2, 0, 4}), Code::kInvalidArgument);
  EXPECT_EQ(code({2, 10, 0}), Code::kInvalidArgument);
  const int other = AddTable("t.sketch", 4);
  EXPECT_EQ(code({255, 10, 4}), Code::kFailedPrecondition);
  ASSERT_TSPS_OK(writer_->RemoveTable(table));
  EXPECT_EQ(StatsOf(other).rows, 0u) << "it is kept";
}

TEST(AdmissionSketchTest, CountsAreAtLeastTheOccurrences) {
  constexpr uint64_t kKeys = 60000;
  for (const uint32_t admitted_at : {5u, 100u}) {
    const AdmissionSketch sketch(AdmissionSketch::LinesFor(kKeys, admitted_at), admitted_at, 1, 42);
    std::vector<SketchLine> lines(AdmissionSketch::LinesFor(kKeys, admitted_at));
    size_t exact = 0;
    for (int64_t key = 0; key < static_cast<int64_t>(kKeys); ++key) {
      uint32_t count = 0;
      const uint32_t n = key % 10 == 0 ? 3 : 1;
      for (uint32_t i = 0; i < n; ++i) count = sketch.Add(key, 1, 0, &lines[sketch.LineOf(key)]);
      EXPECT_GE(count, n);
      exact += count == n;
    }
    EXPECT_GT(exact, kKeys * 8 / 10);
  }
}

TEST(AdmissionSketchTest, CountsFade) {
  for (const uint32_t admitted_at : {5u, 100u}) {
    const AdmissionSketch sketch(1, admitted_at, 1, 42);
    SketchLine line = {};
    EXPECT_EQ(sketch.Add(1, 12, 3, &line), 12u);
    EXPECT_EQ(sketch.CountAtLeast(line, 12, 3), 2u);
    EXPECT_EQ(sketch.CountAtLeast(line, 7, 4), 0u);
    EXPECT_EQ(sketch.CountAtLeast(line, 6, 4), 2u);
    EXPECT_EQ(sketch.Add(1, 1, 5, &line), 4u);
    EXPECT_EQ(sketch.Add(1, 1, 500, &line), 1u);
  }
}

#ifdef TFSPS_FAULT_POINTS

// A writer is killed in steps that count and admit keys and evict rows.
class AdmissionKillTest : public AdmissionTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr uint64_t kSteps = 30;
  static constexpr AdmissionPolicy kPolicy = {3, 8, 60};

  // Returns whether a state differs from the model after a kill at a point, or after its recovery.
  bool DiffersAfterKills(const char* point, int* kills);
};

bool AdmissionKillTest::DiffersAfterKills(const char* point, int* kills) {
  const TempDir dir;
  MakeAt(dir / "g");
  EvictionPolicy eviction;
  eviction.max_rows = 1500;
  const int table = AddEvicting(eviction);
  SetAdmission(table, kPolicy);
  Model model(eviction, StatsOf(table).index_seed);
  model.SetAdmission(kPolicy, SketchSeed(table));
  std::vector<std::map<int64_t, ModelRow>> expected(1);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    model.Step(step, KeysOf(step, 600), 1.0f);
    expected.push_back(model.rows());
  }
  writer_.reset();
  group_.reset();
  const auto train = [&] {
    group_ = *Group::Open(dir / "g");
    OpenWriter();
    SetPolicy(table, eviction);
    SetAdmission(table, kPolicy);
    for (uint64_t step = group_->step() + 1; step <= kSteps; ++step) {
      if (!Train(table, KeysOf(step, 600), 1.0f).ok()) _exit(13);
    }
  };
  bool differs = false;
  for (long n = 3; KilledAt(point, n, train); n += 1 + n / 2, ++*kills) {
    auto group = Group::Open(dir / "g");
    differs |= !Difference(RowsOf(**group, table), expected[(*group)->step()]).empty();
    auto writer = (*group)->OpenWriter();
    differs |= !writer.ok() || !(*writer)->Verify().ok();
    differs |= !Difference(RowsOf(**group, table), expected[(*group)->step()]).empty();
  }
  auto group = Group::Open(dir / "g");
  return differs || !Difference(RowsOf(**group, table), expected[(*group)->step()]).empty();
}

TEST_P(AdmissionKillTest, EveryKillLeavesAWholeStep) {
  int kills = 0;
  EXPECT_FALSE(DiffersAfterKills(GetParam(), &kills));
  EXPECT_GE(kills, 2) << "the writer passes the point too rarely";
}

INSTANTIATE_TEST_SUITE_P(Points, AdmissionKillTest,
                         ::testing::Values("undo.reserved", "undo.record", "undo.block",
                                           "begin.undo_valid", "begin.odd", "apply.row",
                                           "assign.row", "erase.entry", "commit.insert",
                                           "publish.record", "publish.even"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// Without undo of the sketch, keys are counted twice in steps that are made again.
TEST_F(AdmissionKillTest, ASketchOutsideOfTheUndoLogIsFound) {
  EXPECT_TRUE(FoundWithout("sketch.undo", [&] {
    int kills = 0;
    return DiffersAfterKills("commit.insert", &kills);
  }));
}

#endif  // TFSPS_FAULT_POINTS

}  // namespace
}  // namespace tsps
