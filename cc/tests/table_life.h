// A plain model of admission and eviction, and a fixture for tests that compare a table with it.
#ifndef TFSPS_TESTS_TABLE_LIFE_H_
#define TFSPS_TESTS_TABLE_LIFE_H_

#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/group/scan.h"
#include "core/table/memory_plan.h"
#include "core/table/row_use.h"
#include "tests/group_fixture.h"

namespace tsps {

inline constexpr int64_t kDim = 4;
inline constexpr float kRate = 0.5f;
inline constexpr uint64_t kSeed = 12345;

inline TableConfig EvictingConfig() {
  TableConfig config = MakeConfig("t", kDim);
  config.metadata.push_back({kUsePlane, PlaneType::kUint32, 2, 0});
  return config;
}

struct ModelRow {
  std::vector<float> row;
  RowUse use;
};

// The sketch as a matrix of counts, as admission_sketch.h states it.
class ModelSketch {
 public:
  ModelSketch(AdmissionPolicy policy, uint64_t index_seed)
      : policy_(policy),
        seed_(~index_seed),
        most_(policy.count > 15 ? 255 : 15),
        lines_(policy.lines, Line(policy.count > 15 ? 60 : 120)) {}

  // Counts a key, and returns whether it is admitted.
  bool Admits(uint64_t step, int64_t key, uint32_t occurrences) {
    const uint64_t hash = HashKey(key, seed_);
    const auto at =
        static_cast<size_t>((static_cast<unsigned __int128>(hash) * lines_.size()) >> 64);
    Line& line = lines_[at];
    const uint64_t epoch = step / policy_.half_life;
    for (; line.epoch < epoch; ++line.epoch) {
      for (uint32_t& cell : line.cells) cell /= 2;
    }
    const size_t n = line.cells.size();
    const size_t first = hash % 65536 % n;
    uint32_t& a = line.cells[first];
    uint32_t& b = line.cells[(first + 1 + hash / 65536 % 65536 % (n - 1)) % n];
    const uint32_t count = std::min(std::min(a, b) + occurrences, most_);
    a = std::max(a, count);
    b = std::max(b, count);
    return count >= policy_.count;
  }

 private:
  struct Line {
    explicit Line(size_t n) : cells(n) {}
    uint64_t epoch = 0;
    std::vector<uint32_t> cells;
  };
  const AdmissionPolicy policy_;
  const uint64_t seed_;
  const uint32_t most_;
  std::vector<Line> lines_;
};

// A table as a map, and the rules of admission and eviction as the headers of their policies state
// them.
class Model {
 public:
  Model(EvictionPolicy policy, uint64_t index_seed)
      : policy_(std::move(policy)), index_seed_(index_seed) {}
  void SetAdmission(const AdmissionPolicy& policy, uint64_t sketch_seed) {
    sketch_.emplace(policy, sketch_seed);
  }

  // Makes a step of SGD with the gradient `g` in every element. `occurrences`: of each key; empty:
  // all 1.
  void Step(uint64_t step, std::vector<int64_t> keys, float g,
            const std::vector<uint32_t>& occurrences = {}) {
    const auto now = static_cast<uint32_t>(step);
    if (sketch_.has_value()) {
      std::map<int64_t, uint32_t> counts;
      for (size_t i = 0; i < keys.size(); ++i) {
        counts[keys[i]] = occurrences.empty() ? 1 : occurrences[i];
      }
      keys.clear();
      for (const auto& [key, count] : counts) {
        if (rows_.count(key) == 0) {
          if (!sketch_->Admits(step, key, count)) {
            ++dropped_;
            continue;
          }
          ++admitted_;
        }
        keys.push_back(key);
      }
    }
    const std::set<int64_t> changed(keys.begin(), keys.end());
    size_t fresh = 0;
    for (const int64_t key : keys) fresh += rows_.count(key) == 0;
    for (const int64_t key : Evicted(step, changed, fresh)) rows_.erase(key);
    for (const int64_t key : keys) {
      ModelRow& entry = RowOf(key, now);
      for (float& value : entry.row) value -= kRate * g;
      const uint32_t halvings = now / policy_.half_life - entry.use.step / policy_.half_life;
      entry.use = {now, (entry.use.count >> std::min(31u, halvings)) + 256};
    }
  }
  void Assign(uint64_t step, const std::vector<int64_t>& keys, float value) {
    for (const int64_t key : keys) {
      RowOf(key, static_cast<uint32_t>(step)).row.assign(kDim, value);
    }
  }
  void Erase(const std::vector<int64_t>& keys) {
    for (const int64_t key : keys) rows_.erase(key);
  }
  // Adopts the rows of a state.
  void Restore(std::map<int64_t, ModelRow> rows) { rows_ = std::move(rows); }

  const std::map<int64_t, ModelRow>& rows() const { return rows_; }
  uint64_t unused() const { return unused_; }
  uint64_t excess() const { return excess_; }
  uint64_t admitted() const { return admitted_; }
  uint64_t dropped() const { return dropped_; }

 private:
  ModelRow& RowOf(int64_t key, uint32_t now) {
    ModelRow& entry = rows_[key];
    if (entry.row.empty()) {
      entry.row.resize(kDim);
      InitialRow(EvictingConfig(), key, entry.row.data());
      entry.use = {now, 0};
    }
    return entry;
  }

  std::vector<int64_t> Evicted(uint64_t step, const std::set<int64_t>& changed, size_t fresh) {
    struct Candidate {
      uint64_t first, second, hash;
      int64_t key;
      bool operator<(const Candidate& other) const {
        return std::tie(first, second, hash) < std::tie(other.first, other.second, other.hash);
      }
    };
    const uint64_t live = rows_.size();
    uint64_t wanted = 0;
    if (policy_.max_rows > 0 && live + fresh > policy_.max_rows) {
      wanted = std::min<uint64_t>(live + fresh - policy_.max_rows, fresh + 1024);
    }
    for (uint64_t n = std::max<uint64_t>(1024, 4 * wanted);; n *= 4) {
      std::vector<int64_t> evicted;
      std::vector<Candidate> others;
      const uint64_t begin = step * 0x9E3779B97F4A7C15u;
      const uint64_t span = n >= live ? UINT64_MAX : UINT64_MAX / live * n;
      for (const auto& [key, entry] : rows_) {
        const uint64_t hash = HashKey(key, index_seed_);
        if (hash - begin > span || changed.count(key) != 0 || policy_.keep.count(key) != 0)
          continue;
        const uint64_t age = step - entry.use.step;
        if (policy_.unused_steps > 0 && age >= policy_.unused_steps) {
          evicted.push_back(key);
          continue;
        }
        const auto now = static_cast<uint32_t>(step);
        const uint32_t halvings = now / policy_.half_life - entry.use.step / policy_.half_life;
        const uint64_t count = entry.use.count >> std::min(31u, halvings);
        if (policy_.order == EvictionPolicy::Order::kLeastRecent) {
          others.push_back({entry.use.step, count, hash, key});
        } else {
          others.push_back({count, entry.use.step, hash, key});
        }
      }
      if (evicted.size() + others.size() < wanted && n < live) continue;
      std::sort(others.begin(), others.end());
      unused_ += evicted.size();
      for (size_t i = 0; evicted.size() < wanted && i < others.size(); ++i, ++excess_) {
        evicted.push_back(others[i].key);
      }
      return evicted;
    }
  }

  const EvictionPolicy policy_;
  const uint64_t index_seed_;
  std::map<int64_t, ModelRow> rows_;
  std::optional<ModelSketch> sketch_;
  uint64_t unused_ = 0, excess_ = 0, admitted_ = 0, dropped_ = 0;
};

inline std::map<int64_t, ModelRow> RowsOf(const ReadView& view, int table) {
  std::map<int64_t, ModelRow> rows;
  VisitRows(view, table, [&](int64_t key, uint32_t row) {
    ModelRow& entry = rows[key];
    entry.row.resize(kDim);
    RacyRead(entry.row.data(), view.Row(table, row), kDim * sizeof(float));
    RacyRead(&entry.use, view.Metadata(table, 0, row), sizeof(entry.use));
  });
  return rows;
}

// Reads all rows of a scan.
inline std::map<int64_t, ModelRow> RowsOf(Scan& scan, int table) {
  constexpr size_t kBlock = 100;
  const PlaneList& list = scan.Planes(table);
  std::map<int64_t, ModelRow> rows;
  std::vector<int64_t> keys(kBlock);
  std::vector<float> values(kBlock * kDim);
  std::vector<RowUse> uses(kBlock);
  char* planes[kMaxPlanes] = {};
  planes[0] = reinterpret_cast<char*>(values.data());
  planes[list.metadata(0)] = reinterpret_cast<char*>(uses.data());
  while (true) {
    const auto n = scan.Next(table, kBlock, keys.data(), planes);
    if (!n.ok() || *n == 0) return rows;
    for (size_t i = 0; i < *n; ++i) {
      const float* const row = values.data() + i * kDim;
      rows[keys[i]] = {std::vector<float>(row, row + kDim), uses[i]};
    }
  }
}

// Reads all rows of a table, in memory and on disk.
inline std::map<int64_t, ModelRow> RowsOf(Group& group, int table) {
  std::map<int64_t, ModelRow> rows;
  const auto config = group.Config(table);
  if (config.ok() && (*config)->storage.tiered()) {
    const auto scan = Scan::Begin(group, {table});
    EXPECT_TRUE(scan.ok()) << scan.status().message();
    return scan.ok() ? RowsOf(**scan, table) : rows;
  }
  const Status status = group.Read([&](const ReadView& view) {
    rows = RowsOf(view, table);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return rows;
}

// Returns a description of the first difference; "" if there is none.
inline std::string Difference(const std::map<int64_t, ModelRow>& rows,
                              const std::map<int64_t, ModelRow>& expected) {
  for (const auto& [key, entry] : expected) {
    const auto found = rows.find(key);
    if (found == rows.end()) return "key " + std::to_string(key) + " is absent";
    const ModelRow& row = found->second;
    if (row.use.step != entry.use.step || row.use.count != entry.use.count) {
      return "key " + std::to_string(key) + " has another use";
    }
    if (row.row != entry.row) return "key " + std::to_string(key) + " has another row";
  }
  if (rows.size() == expected.size()) return "";
  return std::to_string(rows.size()) + " rows, expected " + std::to_string(expected.size());
}

// Keys that a step trains: some of a few hot ones, and some of a range that moves on.
inline std::vector<int64_t> KeysOf(uint64_t step, size_t n) {
  std::mt19937_64 random(step * 31 + 7);
  std::set<int64_t> keys;
  while (keys.size() < n) {
    const bool hot = random() % 3 == 0;
    const auto drift = static_cast<int64_t>(step * n / 2);
    keys.insert(hot ? static_cast<int64_t>(random() % (2 * n))
                    : 1000000 + drift + static_cast<int64_t>(random() % (4 * n)));
  }
  return {keys.begin(), keys.end()};
}

class TableLifeTest : public GroupTest {
 protected:
  void SetUp() override { MakeAt(dir_ / "g"); }

  void MakeAt(const std::string& path) {
    GroupDraw draw = GroupDraw::Random();
    draw.index_seed = kSeed;
    auto group = Group::Create(path, kUuid, draw);
    ASSERT_TRUE(group.ok()) << group.status().message();
    writer_.reset();
    group_ = *group;
    OpenWriter();
  }
  // `in_memory`: the number of rows that a tiered table has in memory; 0: all rows are there.
  int AddEvicting(const EvictionPolicy& policy, uint64_t in_memory = 0) {
    TableConfig config = EvictingConfig();
    if (in_memory > 0) {
      OptimizerConfig adagrad;
      adagrad.kind = OptimizerKind::kAdagrad;
      const PlaneList planes = PlanesOf(config, adagrad, 1, 1);
      config.max_rows = 12000;
      const uint64_t memory = MemoryFor(in_memory, RowCost(planes), 12000);
      config.storage = {group_->path() + ".disk", memory, 128 << 10};
    }
    const auto table = writer_->CreateTable(config);
    EXPECT_TRUE(table.ok()) << table.status().message();
    OptimizerConfig sgd;
    sgd.kind = OptimizerKind::kSgd;
    EXPECT_TRUE(writer_->BindOptimizer(*table, sgd, false).ok());
    SetPolicy(*table, policy);
    return *table;
  }
  void SetPolicy(int table, const EvictionPolicy& policy) {
    ASSERT_TSPS_OK(writer_->SetEviction(table, std::make_shared<EvictionPolicy>(policy)));
  }
  void SetAdmission(int table, const AdmissionPolicy& policy) {
    const auto forgotten = writer_->SetAdmission(table, std::make_shared<AdmissionPolicy>(policy));
    ASSERT_TRUE(forgotten.ok()) << forgotten.status().message();
    EXPECT_FALSE(*forgotten);
  }
  uint64_t SketchSeed(int table) { return StatsOf(**group_->SketchOf(table)).index_seed; }
  Status Train(int table, const std::vector<int64_t>& keys, float g,
               const std::vector<uint32_t>& occurrences = {}) {
    const std::vector<float> gradients(keys.size() * kDim, g);
    TableUpdate update;
    update.table = table;
    update.keys = keys.data();
    update.gradients = gradients.data();
    update.n = keys.size();
    update.occurrences = occurrences.empty() ? nullptr : occurrences.data();
    update.hyper = &kRate;
    update.n_hyper = 1;
    return writer_->ApplyStep(group_->step() + 1, {update}, executor_);
  }
  void Expect(int table, const Model& model, const std::string& when) {
    ASSERT_EQ(Difference(RowsOf(*group_, table), model.rows()), "") << when;
    const TableStats stats = StatsOf(table);
    ASSERT_EQ(stats.evicted_unused, model.unused()) << when;
    ASSERT_EQ(stats.evicted_excess, model.excess()) << when;
    ASSERT_EQ(stats.admitted, model.admitted()) << when;
    ASSERT_EQ(stats.dropped, model.dropped()) << when;
  }
};

#ifdef TFSPS_FAULT_POINTS

// Returns whether `differs` returns true in a child process with a mechanism off.
template <typename Differs>
inline bool FoundWithout(const char* mechanism, const Differs& differs) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TFSPS_FAULT_OFF", mechanism, 1);
    _exit(differs() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

#endif  // TFSPS_FAULT_POINTS

}  // namespace tsps

#endif  // TFSPS_TESTS_TABLE_LIFE_H_
