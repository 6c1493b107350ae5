// Helpers for tests of serving files: tables as plain maps, and files made of them.
#ifndef TFSPS_TESTS_SERVING_FIXTURE_H_
#define TFSPS_TESTS_SERVING_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/serving/entry_sorter.h"
#include "core/serving/layer_merge.h"
#include "core/serving/serving_table.h"
#include "core/serving/serving_writer.h"
#include "tests/temp_dir.h"

namespace tsps {

// The rows of keys; nullopt: the key is erased.
using Rows = std::map<int64_t, std::optional<std::vector<float>>>;
using Files = std::vector<std::shared_ptr<const ServingFile>>;

inline Status NoProgress(uint64_t) { return Status(); }

inline ServingInfo InfoOf(uint32_t dim, RowCode code) {
  ServingInfo info;
  info.dim = dim;
  info.row_code = code;
  info.table_uuid = std::string(32, 'a');
  info.hash_seed = 0x1234567890abcdef;
  info.initializer = {InitializerKind::kUniform, -0.5f, 0.5f, 7, 3};
  return info;
}

// Fills a sorter with rows.
inline Status Fill(const Rows& rows, EntrySorter* sorter) {
  for (const auto& [key, row] : rows) {
    TSPS_RETURN_IF_ERROR(row.has_value() ? sorter->Add(key, row->data()) : sorter->Erase(key));
  }
  return Status();
}

inline std::shared_ptr<const ServingFile> Opened(const std::string& path) {
  auto file = ServingFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? *file : nullptr;
}

// Writes a base, or a layer above `older`.
inline Status WriteRows(const std::string& path, const ServingInfo& info, const Rows& rows,
                        const Files* older) {
  EntrySorter sorter(info.row_code, info.dim, info.hash_seed, rows.size(), "/dev/shm");
  TSPS_RETURN_IF_ERROR(Fill(rows, &sorter));
  return older == nullptr ? WriteBase(path, info, sorter, NoProgress)
                          : WriteLayer(path, info, sorter, *older, NoProgress);
}

// Returns a row as a file stores it.
inline std::vector<float> Stored(RowCode code, const std::vector<float>& row) {
  std::vector<char> coded(CodedBytes(code, row.size()));
  std::vector<float> stored(row.size());
  EXPECT_TRUE(EncodeRow(code, row.data(), row.size(), coded.data()).ok());
  DecodeRow(code, coded.data(), row.size(), stored.data());
  return stored;
}

// Returns the row that a table without the key shows.
inline std::vector<float> Initial(const ServingInfo& info, int64_t key) {
  std::vector<float> row(info.dim);
  InitialRow(info.initializer, key, info.dim, row.data());
  return Stored(info.row_code, row);
}

inline std::vector<float> RandomRow(std::mt19937_64& random, size_t dim) {
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> row(dim);
  for (float& value : row) value = normal(random);
  return row;
}

// Compares the rows of keys, present or not, with those of a map.
inline void ExpectRows(const ServingTable& table, const ServingInfo& info, const Rows& rows,
                       const std::vector<int64_t>& keys) {
  std::vector<float> found(keys.size() * info.dim, -77);
  SerialExecutor executor;
  const Status status = table.Lookup(keys.data(), keys.size(), found.data(), executor);
  ASSERT_TRUE(status.ok()) << status.message();
  std::unique_ptr<bool[]> present(new bool[keys.size()]);
  ASSERT_TRUE(table.Contains(keys.data(), keys.size(), present.get()).ok());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto entry = rows.find(keys[i]);
    const bool has = entry != rows.end() && entry->second.has_value();
    ASSERT_EQ(present[i], has) << "key " << keys[i];
    const std::vector<float> expected =
        has ? Stored(info.row_code, *entry->second) : Initial(info, keys[i]);
    const std::vector<float> row(&found[i * info.dim], &found[i * info.dim] + info.dim);
    ASSERT_EQ(row, expected) << "key " << keys[i];
  }
}

}  // namespace tsps

#endif  // TFSPS_TESTS_SERVING_FIXTURE_H_
