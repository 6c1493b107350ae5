// Helpers for tests that need a group with tables.
#ifndef TFSPS_TESTS_GROUP_FIXTURE_H_
#define TFSPS_TESTS_GROUP_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/racy_copy.h"
#include "core/group/group.h"
#include "core/group/table_number.h"
#include "core/table/planes.h"
#include "tests/read_view_rows.h"
#include "tests/temp_dir.h"

namespace tsps {

#define ASSERT_TSPS_OK(expression)                      \
  do {                                                  \
    const ::tsps::Status ok_status = (expression);      \
    ASSERT_TRUE(ok_status.ok()) << ok_status.message(); \
  } while (false)

inline const std::string kUuid(32, 'a');

inline TableConfig MakeConfig(const std::string& name, int64_t dim, uint64_t salt = 0) {
  TableConfig config;
  config.name = name;
  config.uuid = std::string(31, 'b') + static_cast<char>('0' + salt % 10);
  config.dim = dim;
  config.initializer.kind = InitializerKind::kUniform;
  config.initializer.a = -0.05f;
  config.initializer.b = 0.05f;
  config.initializer.seed = 7;
  config.initializer.salt = salt;
  return config;
}

inline TableConfig ConfigOf(Group& group, int table) {
  const auto config = group.Config(table);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? **config : TableConfig();
}

inline size_t CountTables(Group& group) {
  const auto tables = group.Tables();
  EXPECT_TRUE(tables.ok()) << tables.status().message();
  return tables.ok() ? tables->size() : 0;
}

// The rows and slots of a group as plain maps.
struct Image {
  uint64_t step = 0;
  // Indexed by the table's place, then by key: the row, followed by its slots.
  std::vector<std::map<int64_t, std::vector<float>>> tables;
  bool operator==(const Image& other) const { return step == other.step && tables == other.tables; }
};

inline Image ImageOf(Group& group, const ReadView& view) {
  Image image;
  image.step = view.step();
  for (const int t : view.tables()) {
    const auto config = group.Config(t);
    EXPECT_TRUE(config.ok()) << config.status().message();
    const size_t dim = static_cast<size_t>((*config)->dim);
    image.tables.resize(std::max(image.tables.size(), PlaceOf(t) + 1));
    auto& rows = image.tables[PlaceOf(t)];
    const OptimizerKind kind = view.Stats(t).optimizer.kind;
    VisitRows(view, t, [&](int64_t key, uint32_t row) {
      std::vector<float> values(dim);
      std::vector<char> stored(dim * ElementBytes((*config)->row_type));
      RacyRead(stored.data(), view.Row(t, row), stored.size());
      WidenRow((*config)->row_type, stored.data(), dim, values.data());
      for (int k = 0; k < SlotCount(kind); ++k) {
        const size_t width = SlotWidth(kind, k, dim);
        values.resize(values.size() + width);
        if (const float* slot = view.Slot(t, k, row)) {
          RacyRead(values.data() + values.size() - width, slot, width * sizeof(float));
        }
      }
      rows[key] = std::move(values);
    });
  }
  return image;
}

inline Image ReadImage(Group& group) {
  Image image;
  const Status status = group.Read([&](const ReadView& view) {
    image = ImageOf(group, view);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return image;
}

inline std::vector<float> LookupRow(Group& group, int table, int64_t key) {
  const TableConfig config = ConfigOf(group, table);
  const size_t dim = static_cast<size_t>(config.dim);
  std::vector<float> row(dim);
  const Status status = group.Read([&](const ReadView& view) {
    const char* row_data = nullptr;
    view.Find(table, &key, 1, &row_data);
    std::vector<char> stored(dim * ElementBytes(config.row_type));
    if (row_data == nullptr) {
      InitialRow(config, key, stored.data());
    } else {
      RacyRead(stored.data(), row_data, stored.size());
    }
    WidenRow(config.row_type, stored.data(), dim, row.data());
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return row;
}

class GroupTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(); }

  void Make() {
    auto group = Group::Create(dir_ / "g", kUuid);
    ASSERT_TRUE(group.ok()) << group.status().message();
    group_ = *group;
    OpenWriter();
  }
  void OpenWriter() {
    auto writer = group_->OpenWriter();
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    writer_ = std::move(*writer);
  }
  void Reopen() {
    writer_.reset();
    auto group = Group::Open(dir_ / "g");
    ASSERT_TRUE(group.ok()) << group.status().message();
    group_ = *group;
    OpenWriter();
  }
  int AddTable(const std::string& name, int64_t dim, OptimizerKind kind = OptimizerKind::kSgd) {
    auto table = writer_->CreateTable(MakeConfig(name, dim, CountTables(*group_)));
    EXPECT_TRUE(table.ok()) << table.status().message();
    OptimizerConfig optimizer;
    optimizer.kind = kind;
    optimizer.slot_init[0] = kind == OptimizerKind::kAdagrad ? 0.1f : 0.0f;
    const Status bound = writer_->BindOptimizer(*table, optimizer, false);
    EXPECT_TRUE(bound.ok()) << bound.message();
    return *table;
  }
  // Makes an SGD or Adagrad step. The gradient of each key's row is `g` in every element.
  Status Step(int table, const std::vector<int64_t>& keys, float g,
              const OptimizerUse& optimizer = {}) {
    const size_t dim = static_cast<size_t>(ConfigOf(*group_, table).dim);
    const std::vector<float> gradients(keys.size() * dim, g);
    const std::vector<float> hyper = {1.0f, 1e-7f};
    TableUpdate update;
    update.table = table;
    update.keys = keys.data();
    update.gradients = gradients.data();
    update.n = keys.size();
    update.hyper = hyper.data();
    update.n_hyper = static_cast<size_t>(HyperCount(StatsOf(table).optimizer.kind));
    RowChanges changes;
    changes.step = group_->step() + 1;
    changes.updates = {update};
    changes.optimizer = optimizer;
    TSPS_RETURN_IF_ERROR(writer_->Prepare(changes, executor_));
    writer_->Publish();
    return Status();
  }
  TableStats StatsOf(int table) {
    TableStats stats;
    EXPECT_TRUE(group_
                    ->Read([&](const ReadView& view) {
                      stats = view.Stats(table);
                      return Status();
                    })
                    .ok());
    return stats;
  }

  TempDir dir_;
  SerialExecutor executor_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<GroupWriter> writer_;
};

}  // namespace tsps

#endif  // TFSPS_TESTS_GROUP_FIXTURE_H_
