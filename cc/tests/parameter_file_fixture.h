// A folder with one parameter file, for the tests of its format.
#ifndef TFSPS_TESTS_PARAMETER_FILE_FIXTURE_H_
#define TFSPS_TESTS_PARAMETER_FILE_FIXTURE_H_

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/crc32c.h"
#include "core/files/parameter_file.h"
#include "core/files/parameter_file_layout.h"

namespace tsps {

class ParameterFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "parameter_file_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder_ + "/table.tsps";
  }
  void TearDown() override {
    for (const std::string& name : Names()) unlink((folder_ + "/" + name).c_str());
    rmdir(folder_.c_str());
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    DIR* folder = opendir(folder_.c_str());
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(folder);
    return names;
  }

  static ParameterFileInfo Info(OptimizerKind kind, uint32_t dim, uint64_t n_rows) {
    ParameterFileInfo info;
    info.dim = dim;
    info.n_rows = n_rows;
    info.optimizer.kind = kind;
    info.optimizer.slot_init[0] = 0.1f;
    info.initializer = {InitializerKind::kUniform, -0.5f, 0.25f, 1234567890123, 42};
    info.step = 77;
    info.key_limit = int64_t{1} << 40;
    return info;
  }

  static int64_t Key(size_t i) { return static_cast<int64_t>(i) * 1000003 - 5; }
  static float Value(size_t row, size_t d, int field) {
    return static_cast<float>(row * 7 + d) + 0.25f * static_cast<float>(field);
  }

  // Writes the file in batches of 1000 rows.
  Status Write(const ParameterFileInfo& info) const {
    TSPS_ASSIGN_OR_RETURN(auto writer, ParameterFileWriter::Create(path_, info));
    const size_t n_slots = static_cast<size_t>(SlotCount(info.optimizer.kind));
    for (size_t first = 0; first < info.n_rows; first += 1000) {
      const size_t n = std::min<size_t>(1000, info.n_rows - first);
      std::vector<int64_t> keys(n);
      std::vector<std::vector<float>> fields(1 + n_slots, std::vector<float>(n * info.dim));
      std::vector<const float*> slots;
      for (size_t i = 0; i < n; ++i) {
        keys[i] = Key(first + i);
        for (size_t f = 0; f <= n_slots; ++f) {
          for (size_t d = 0; d < info.dim; ++d) {
            fields[f][i * info.dim + d] = Value(first + i, d, static_cast<int>(f));
          }
        }
      }
      for (size_t f = 1; f <= n_slots; ++f) slots.push_back(fields[f].data());
      TSPS_RETURN_IF_ERROR(writer->Append(keys.data(), fields[0].data(), slots.data(), n));
    }
    return writer->Finish();
  }

  // Opens the file and reads every block.
  Status ReadAll() const {
    TSPS_ASSIGN_OR_RETURN(const auto reader, ParameterFileReader::Open(path_));
    const ParameterFileInfo& info = reader->info();
    for (size_t block = 0; block < reader->n_blocks(); ++block) {
      const size_t n = reader->rows_in_block(block);
      std::vector<int64_t> keys(n);
      std::vector<std::vector<float>> fields(5, std::vector<float>(n * info.dim));
      float* slots[] = {fields[1].data(), fields[2].data(), fields[3].data(), fields[4].data()};
      TSPS_RETURN_IF_ERROR(reader->ReadBlock(block, keys.data(), fields[0].data(), slots));
      for (size_t i = 0; i < n; ++i) {
        const size_t row = block * kRowsPerBlock + i;
        EXPECT_EQ(keys[i], Key(row));
        for (int f = 0; f <= SlotCount(info.optimizer.kind); ++f) {
          for (size_t d = 0; d < info.dim; ++d)
            EXPECT_EQ(fields[f][i * info.dim + d], Value(row, d, f));
        }
      }
    }
    return Status();
  }

  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void SetBytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // Sets one field of the header and makes its checksum right again, as an attacker would.
  template <typename T>
  static std::string Forged(std::string bytes, size_t offset, T value) {
    std::memcpy(&bytes[offset], &value, sizeof(value));
    const uint32_t crc = Crc32c(0, bytes.data(), offsetof(ParameterFileHeader, crc));
    std::memcpy(&bytes[offsetof(ParameterFileHeader, crc)], &crc, sizeof(crc));
    return bytes;
  }

  std::string folder_, path_;
};

}  // namespace tsps

#endif  // TFSPS_TESTS_PARAMETER_FILE_FIXTURE_H_
