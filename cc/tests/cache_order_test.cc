// The rules of order for moving rows between host and device (slot_directory.h). Random
// interleavings of the events of steps, of reading ahead, and of lookups beside the steps, keep the
// rules, and must end with the rows that training without a cache gives. One control for each rule
// breaks the rule, and must end with wrong rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/cache/slot_directory.h"

namespace tsps {
namespace {

// A row, as the list of the steps that updated it.
using Row = std::vector<int>;

struct Rules {
  bool train_before_gather = true;    // a victim's row is read after its last update
  bool commit_before_scatter = true;  // a slot is written after Commit
  bool landed_before_commit = true;   // the host has the step's rows before Commit
  bool match_is_obeyed = true;  // rows that were written since they were read ahead are read again
  bool commit_before_find = true;  // a step finds its keys after the Commit of the step before
  bool changes_are_obeyed = true;  // a lookup beside the steps does not use rows that have moved
  bool trained_before_changes = true;  // it takes changes() while no step's rows are to be written
};

enum Event {
  kStage,
  kReadAhead,
  kMatch,
  kFind,
  kRead,
  kPlan,
  kGather,
  kLand,
  kCommit,
  kScatter,
  kForward,
  kTrain,
  // A lookup of all keys beside step m.
  kBesideBegin,
  kBesideFind,
  kBesideRead,
  kBesideEnd
};
constexpr int kEvents = kBesideEnd + 1;

class Interleaving {
 public:
  Interleaving(uint32_t seed, SlotDirectory::Policy policy, const Rules& rules)
      : random_(seed), rules_(rules), directory_(WithSlots(policy)) {
    ahead_ = 1 + static_cast<int>(random_() % 4);
    for (int64_t key = 0; key < kKeys; ++key) host_[key] = reference_[key] = {};
    steps_.resize(kBatches);
    for (int m = 0; m < kBatches; ++m) {
      std::set<int64_t> keys;
      while (keys.size() < kPerBatch) keys.insert(static_cast<int64_t>(random_() % kKeys));
      Step& step = steps_[static_cast<size_t>(m)];
      step.keys.assign(keys.begin(), keys.end());
      step.staged = random_() % 5 != 0;
      step.fails = random_() % 8 == 0;
      for (const int64_t key : step.keys) {
        step.expected.push_back(reference_[key]);
        if (!step.fails) reference_[key].push_back(m);
      }
    }
  }

  // Runs all events. Returns whether the rows are those of training without a cache.
  bool RowsAreRight() {
    std::vector<std::pair<Event, int>> remaining;
    for (int m = 0; m < kBatches; ++m) {
      for (int e = 0; e < kEvents; ++e) remaining.emplace_back(static_cast<Event>(e), m);
    }
    while (!remaining.empty()) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < remaining.size(); ++i) {
        if (IsReady(remaining[i].first, remaining[i].second)) ready.push_back(i);
      }
      if (ready.empty()) return false;
      const size_t i = ready[random_() % ready.size()];
      const auto [event, m] = remaining[i];
      remaining.erase(remaining.begin() + static_cast<std::ptrdiff_t>(i));
      Do(event, m);
      steps_[static_cast<size_t>(m)].done[event] = true;
    }
    for (const Step& step : steps_) {
      if (step.forward != step.expected) return false;
      for (const auto& [key, row] : step.beside) {
        if (!WasOf(key, row)) return false;
      }
    }
    std::map<int64_t, Row> rows = host_;
    const SlotDirectory::Newer newer = directory_.FindNewer();
    for (size_t i = 0; i < newer.keys.size(); ++i) {
      rows[newer.keys[i]] = device_[static_cast<int32_t>(newer.slots[i])];
    }
    return rows == reference_;
  }

 private:
  static constexpr int64_t kKeys = 20;
  static constexpr int kBatches = 14;
  static constexpr size_t kPerBatch = 4;

  struct Step {
    std::vector<int64_t> keys;
    bool staged = false, fails = false;
    std::vector<uint8_t> absent, counts;
    std::vector<Row> read_ahead, from_host, forward, expected;
    std::vector<int32_t> slots;
    uint64_t changes = 0;  // when the lookup beside the step began
    std::vector<int32_t> slots_beside;
    std::vector<std::pair<int64_t, Row>> beside;  // keys and rows that this lookup found
    SlotDirectory::Plan plan;
    std::vector<Row> victims;
    bool done[kEvents] = {};
  };

  static SlotDirectory::Options WithSlots(SlotDirectory::Policy policy) {
    SlotDirectory::Options options;
    options.slots = 7;
    options.policy = policy;
    options.memory = 0.7;  // rows enter and leave often
    return options;
  }

  bool Done(Event event, int m) const {
    return m < 0 || steps_[static_cast<size_t>(m)].done[event];
  }

  // Whether a key had this row before or after some step.
  bool WasOf(int64_t key, const Row& row) const {
    const Row& all = reference_.at(key);
    return row.size() <= all.size() && std::equal(row.begin(), row.end(), all.begin());
  }

  // Whether a committed step has not written its rows on the device.
  bool IsMoving() const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const Step& step) { return step.done[kCommit] && !step.done[kTrain]; });
  }

  bool IsReady(Event event, int m) const {
    switch (event) {
      case kStage:  // during training, some batches ahead
        return Done(kStage, m - 1) && Done(kMatch, m - 1 - ahead_);
      case kReadAhead:
        return Done(kStage, m);
      case kMatch:
        return Done(kReadAhead, m) && Done(kMatch, m - 1) &&
               (!rules_.commit_before_find || Done(kCommit, m - 1));
      case kFind:
        return Done(kMatch, m) && (!rules_.commit_before_find || Done(kCommit, m - 1));
      case kRead:
        return Done(kFind, m);
      case kForward:  // the device runs one step after another
        return Done(kRead, m) && Done(kTrain, m - 1);
      case kPlan:
        return Done(kFind, m) && Done(kCommit, m - 1);
      case kGather:
        return Done(kPlan, m) && (!rules_.train_before_gather || Done(kTrain, m - 1));
      case kLand:
        return Done(kGather, m) && Done(kForward, m) && Done(kLand, m - 1);
      case kCommit:
        return Done(kPlan, m) && (!rules_.landed_before_commit || Done(kLand, m));
      case kScatter:
        return Done(kPlan, m) && Done(kForward, m) && Done(kTrain, m - 1) &&
               (!rules_.commit_before_scatter || Done(kCommit, m));
      case kTrain:
        return Done(kScatter, m);
      case kBesideBegin:
        return Done(m % 2 == 0 ? kFind : kCommit, m) &&
               (!rules_.trained_before_changes || !IsMoving());
      case kBesideFind:
        return Done(kBesideBegin, m);
      case kBesideRead:
        return Done(kBesideFind, m);
      case kBesideEnd:
        return Done(kBesideRead, m);
    }
    return false;
  }

  void Do(Event event, int m) {
    Step& step = steps_[static_cast<size_t>(m)];
    const size_t n = step.keys.size();
    switch (event) {
      case kStage:
        step.absent.assign(n, 0);
        if (step.staged) {
          step.absent = directory_.Stage(static_cast<uint64_t>(m), step.keys.data(), n);
        }
        break;
      case kReadAhead:
        step.read_ahead.resize(n);
        for (size_t i = 0; i < n; ++i) {
          if (step.absent[i]) step.read_ahead[i] = host_[step.keys[i]];
        }
        break;
      case kMatch:
        step.counts = directory_.Match(static_cast<uint64_t>(m)).value_or(std::vector<uint8_t>(n));
        if (!rules_.match_is_obeyed) step.counts = step.absent;
        break;
      case kFind:
        step.slots.resize(n);
        directory_.Find(step.keys.data(), n, step.slots.data());
        break;
      case kRead:
        step.from_host.resize(n);
        for (size_t i = 0; i < n; ++i) {
          step.from_host[i] = step.counts[i] ? step.read_ahead[i] : host_[step.keys[i]];
        }
        break;
      case kForward:
        for (size_t i = 0; i < n; ++i) {
          const bool on_device = step.slots[i] != SlotDirectory::kNoSlot;
          step.forward.push_back(on_device ? device_[step.slots[i]] : step.from_host[i]);
        }
        break;
      case kPlan:
        step.plan = *directory_.MakePlan(step.keys.data(), n);
        break;
      case kGather:
        for (const SlotDirectory::Victim& victim : step.plan.victims) {
          step.victims.push_back(device_[static_cast<int32_t>(victim.slot)]);
        }
        break;
      case kLand:
        if (step.fails) break;
        for (size_t v = 0; v < step.victims.size(); ++v) {
          host_[step.plan.victims[v].key] = step.victims[v];
        }
        for (size_t i = 0; i < n; ++i) {
          if (step.plan.slots[i] == SlotDirectory::kNoSlot) host_[step.keys[i]].push_back(m);
        }
        break;
      case kCommit:
        EXPECT_TRUE(step.fails || directory_.Commit(step.plan, step.keys.data()).ok());
        break;
      case kScatter:
        if (step.fails) break;
        for (const uint32_t i : step.plan.entering) device_[step.plan.slots[i]] = step.forward[i];
        break;
      case kTrain:
        if (step.fails) break;
        for (size_t i = 0; i < n; ++i) {
          if (step.plan.slots[i] != SlotDirectory::kNoSlot) {
            device_[step.plan.slots[i]].push_back(m);
          }
        }
        break;
      case kBesideBegin:
        step.changes = directory_.changes();
        break;
      case kBesideFind:
        for (const auto& [key, row] : reference_) {
          directory_.Find(&key, 1, &step.slots_beside.emplace_back());
        }
        break;
      case kBesideRead:
        for (const auto& [key, row] : reference_) {
          const int32_t slot = step.slots_beside[static_cast<size_t>(key)];
          if (slot != SlotDirectory::kNoSlot) step.beside.emplace_back(key, device_[slot]);
        }
        break;
      case kBesideEnd:
        if (rules_.changes_are_obeyed && directory_.changes() != step.changes) step.beside.clear();
        break;
    }
  }

  std::mt19937 random_;
  Rules rules_;
  SlotDirectory directory_;
  int ahead_;
  std::map<int64_t, Row> host_, reference_;
  std::map<int32_t, Row> device_;  // by slot
  std::vector<Step> steps_;
};

int CountWrong(const Rules& rules, int trials) {
  int wrong = 0;
  for (int seed = 0; seed < trials; ++seed) {
    const auto policy =
        seed % 2 == 0 ? SlotDirectory::Policy::kAdmission : SlotDirectory::Policy::kLru;
    wrong += !Interleaving(static_cast<uint32_t>(seed), policy, rules).RowsAreRight();
  }
  return wrong;
}

constexpr int kTrials = 1500;

TEST(CacheOrder, EveryInterleavingThatKeepsTheRulesIsRight) {
  EXPECT_EQ(CountWrong({}, kTrials), 0);
}

struct Control {
  const char* name;
  bool Rules::* rule;
};

class CacheOrderControl : public ::testing::TestWithParam<Control> {};
INSTANTIATE_TEST_SUITE_P(
    Rules, CacheOrderControl,
    ::testing::Values(Control{"TrainBeforeGather", &Rules::train_before_gather},
                      Control{"CommitBeforeScatter", &Rules::commit_before_scatter},
                      Control{"LandedBeforeCommit", &Rules::landed_before_commit},
                      Control{"MatchIsObeyed", &Rules::match_is_obeyed},
                      Control{"CommitBeforeFind", &Rules::commit_before_find},
                      Control{"ChangesAreObeyed", &Rules::changes_are_obeyed},
                      Control{"TrainedBeforeChanges", &Rules::trained_before_changes}),
    [](const auto& info) { return info.param.name; });

TEST_P(CacheOrderControl, WithoutTheRuleManyAreWrong) {
  Rules rules;
  rules.*GetParam().rule = false;
  const int wrong = CountWrong(rules, kTrials);
  RecordProperty("wrong", wrong);
  EXPECT_GT(wrong, kTrials / 4);
}

}  // namespace
}  // namespace tsps
