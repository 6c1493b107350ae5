// A sequence of mutations of all kinds, and the states that they produce.
#ifndef TFSPS_TESTS_MUTATION_SEQUENCE_H_
#define TFSPS_TESTS_MUTATION_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/group_fixture.h"

namespace tsps {

inline constexpr int kMutations = 40;
inline constexpr int64_t kDims[] = {4, 6};

inline Status SetUpGroup(GroupWriter& writer) {
  for (int t = 0; t < 2; ++t) {
    TSPS_ASSIGN_OR_RETURN(
        const int table,
        writer.CreateTable(MakeConfig(t == 0 ? "a" : "b", kDims[t], static_cast<uint64_t>(t))));
    OptimizerConfig optimizer;
    optimizer.kind = t == 0 ? OptimizerKind::kAdagrad : OptimizerKind::kAdam;
    optimizer.slot_init[0] = t == 0 ? 0.1f : 0.0f;
    TSPS_RETURN_IF_ERROR(writer.BindOptimizer(table, optimizer, false));
  }
  return Status();
}

// Makes mutation i of the sequence, which depends only on i and the committed state.
inline Status Mutate(Group& group, GroupWriter& writer, int i) {
  std::mt19937_64 random(static_cast<uint64_t>(i) * 977 + 5);
  SerialExecutor serial;
  const auto draw = [&](size_t n) {
    std::vector<int64_t> keys;
    // Half of the keys are from a few hundred hot keys, which are updated again and again. The
    // other half makes the index grow.
    for (size_t k = 0; k < n; ++k)
      keys.push_back(static_cast<int64_t>(random() % (k % 2 == 0 ? 500 : 60000)) * 7919);
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  };
  if (i % 5 == 3) {
    const int t = static_cast<int>(random() % 2);
    const std::vector<int64_t> keys = draw(300);
    const std::vector<float> rows(keys.size() * static_cast<size_t>(kDims[t]),
                                  static_cast<float>(i));
    return writer.Assign(t, keys.data(), rows.data(), nullptr, keys.size(), serial);
  }
  if (i % 5 == 4) {
    const std::vector<int64_t> keys = draw(4000);
    auto erased = writer.Erase(static_cast<int>(random() % 2), keys.data(), keys.size());
    return erased.status();
  }
  if (i == 20) {  // replaces the slots of a table that has rows
    OptimizerConfig sgd;
    sgd.kind = OptimizerKind::kSgd;
    return writer.BindOptimizer(1, sgd, true);
  }
  std::vector<TableUpdate> updates(2);
  std::vector<int64_t> keys[2];
  std::vector<float> gradients[2];
  const float adagrad[] = {0.5f, 1e-7f};
  const float adam[] = {0.01f, 0.9f, 0.999f, 1e-7f, static_cast<float>(group.step() + 1)};
  for (int t = 0; t < 2; ++t) {
    keys[t] = draw(1200);
    gradients[t].resize(keys[t].size() * static_cast<size_t>(kDims[t]));
    for (float& g : gradients[t])
      g = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 1000;
    updates[static_cast<size_t>(t)] = {
        t, keys[t].data(), gradients[t].data(), keys[t].size(), adagrad, 2};
  }
  if (i < 20) {
    updates[1].hyper = adam;
    updates[1].n_hyper = 5;
  } else {
    updates[1].n_hyper = 1;
  }
  RowChanges changes;
  changes.step = group.step() + 1;
  changes.updates = updates;
  // Some mutations also set and erase rows in the same commit.
  const auto without = [](std::vector<int64_t> from, const std::vector<int64_t>& excluded) {
    const auto is_excluded = [&](int64_t key) {
      return std::binary_search(excluded.begin(), excluded.end(), key);
    };
    from.erase(std::remove_if(from.begin(), from.end(), is_excluded), from.end());
    return from;
  };
  const std::vector<int64_t> set = without(draw(200), keys[0]);
  const std::vector<int64_t> erased = without(without(draw(1500), keys[0]), set);
  const std::vector<float> rows(set.size() * static_cast<size_t>(kDims[0]), static_cast<float>(-i));
  if (i % 5 == 2) {
    const PlaneValues values{PlaneRole::kEmbedding, "embedding",
                             static_cast<size_t>(kDims[0]) * sizeof(float), rows.data()};
    changes.writes.push_back({0, set.data(), set.size(), {values}});
    changes.erases.push_back({0, erased.data(), erased.size()});
  }
  TSPS_RETURN_IF_ERROR(writer.Prepare(changes, serial));
  writer.Publish();
  return Status();
}

// The number of mutations of a group. Each mutation adds one.
inline uint64_t MutationsDone(Group& group) { return group.Info().step + group.Info().version; }

// Returns the states after the set-up and after each mutation. Sets `first` to MutationsDone of the
// first state.
inline std::vector<Image> StatesOfTheSequence(uint64_t* first) {
  std::vector<Image> states;
  TempDir dir;
  auto group = Group::Create(dir / "g", kUuid);
  auto writer = (*group)->OpenWriter();
  EXPECT_TRUE(SetUpGroup(**writer).ok());
  *first = MutationsDone(**group);
  states.push_back(ReadImage(**group));
  for (int i = 0; i < kMutations; ++i) {
    const Status status = Mutate(**group, **writer, i);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(MutationsDone(**group), *first + states.size());
    states.push_back(ReadImage(**group));
  }
  EXPECT_TRUE((*writer)->Verify().ok());
  EXPECT_GT((*group)->counters().growth_splits.load(), 4u);
  return states;
}

}  // namespace tsps

#endif  // TFSPS_TESTS_MUTATION_SEQUENCE_H_
