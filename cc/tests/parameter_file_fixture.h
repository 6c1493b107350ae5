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
    if (SlotCount(kind) > 0) info.optimizer.slot_init[0] = 0.1f;
    info.initializer = {InitializerKind::kUniform, -0.5f, 0.25f, 1234567890123, 42};
    info.step = 77;
    info.key_limit = int64_t{1} << 40;
    return info;
  }

  // Adds metadata planes of three widths.
  static ParameterFileInfo WithMetadata(ParameterFileInfo info) {
    info.metadata = {{"count", PlaneType::kUint32, 1, 7},
                     {"last_used", PlaneType::kInt64, 1, ~uint64_t{0}},
                     {"scales", PlaneType::kFloat16, 3, 0x3C00}};
    return info;
  }

  static int64_t Key(size_t i) { return static_cast<int64_t>(i) * 1000003 - 5; }
  static float Value(size_t row, size_t d, int field) {
    return static_cast<float>(row * 7 + d) + 0.25f * static_cast<float>(field);
  }

  // The contents of each plane for n rows from row `first` on: the floats of Value(), or, for other
  // types, bytes that differ between rows and planes.
  static std::vector<std::string> Values(const ParameterFileInfo& info, size_t first, size_t n) {
    std::vector<std::string> values;
    for (const Plane& plane : PlanesOf(info)) {
      std::string bytes(n * plane.row_bytes, '\0');
      for (size_t i = 0; i < n; ++i) {
        char* const row = &bytes[i * plane.row_bytes];
        for (size_t d = 0; d < plane.row_bytes; ++d) {
          row[d] = static_cast<char>(31 * (first + i) + d + 7 * values.size());
        }
        for (size_t d = 0; plane.type == PlaneType::kFloat32 && 4 * d < plane.row_bytes; ++d) {
          const float value = Value(first + i, d, static_cast<int>(values.size()));
          std::memcpy(row + 4 * d, &value, sizeof(value));
        }
      }
      values.push_back(std::move(bytes));
    }
    return values;
  }

  // Writes the file in batches of 1000 rows.
  Status Write(const ParameterFileInfo& info, bool counted = false,
               ParameterFileChecksums* checksums = nullptr) const {
    TSPS_ASSIGN_OR_RETURN(auto writer, ParameterFileWriter::Create(path_, info, counted));
    for (size_t first = 0; first < info.n_rows; first += 1000) {
      const size_t n = std::min<size_t>(1000, info.n_rows - first);
      std::vector<int64_t> keys(n);
      for (size_t i = 0; i < n; ++i) keys[i] = Key(first + i);
      const std::vector<std::string> values = Values(info, first, n);
      std::vector<const void*> data;
      for (const std::string& plane : values) data.push_back(plane.data());
      TSPS_RETURN_IF_ERROR(writer->Append(keys.data(), data.data(), n));
    }
    TSPS_RETURN_IF_ERROR(writer->Finish());
    if (checksums != nullptr) *checksums = writer->checksums();
    return Status();
  }

  // Reads the keys and rows of a block, without its other planes.
  static Status ReadRows(const ParameterFileReader& reader, size_t block, int64_t* keys,
                         float* rows) {
    std::vector<void*> values(PlanesOf(reader.info()).size(), nullptr);
    values[0] = rows;
    return reader.ReadBlock(block, keys, values.data());
  }

  // Opens the file and reads every block.
  Status ReadAll() const {
    TSPS_ASSIGN_OR_RETURN(const auto reader, ParameterFileReader::Open(path_));
    const ParameterFileInfo& info = reader->info();
    for (size_t block = 0; block < reader->n_blocks(); ++block) {
      const size_t n = reader->rows_in_block(block);
      std::vector<int64_t> keys(n);
      const std::vector<std::string> expected = Values(info, block * kRowsPerBlock, n);
      std::vector<std::string> values = expected;
      std::vector<void*> data;
      for (std::string& plane : values) {
        std::fill(plane.begin(), plane.end(), '\0');
        data.push_back(plane.data());
      }
      TSPS_RETURN_IF_ERROR(reader->ReadBlock(block, keys.data(), data.data()));
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(keys[i], Key(block * kRowsPerBlock + i));
      EXPECT_TRUE(values == expected) << "block " << block;
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
  // Returns the bytes with one field of the header or of its list of planes changed, and with valid
  // checksums, as an attacker would make them.
  template <typename T>
  static std::string Forged(std::string bytes, size_t offset, T value) {
    std::memcpy(&bytes[offset], &value, sizeof(value));
    if (offset >= sizeof(ParameterFileHeader)) {
      ParameterFileHeader header;
      std::memcpy(&header, bytes.data(), sizeof(header));
      header.planes_crc =
          Crc32c(0, &bytes[sizeof(header)], header.n_planes * sizeof(ParameterFilePlane));
      std::memcpy(bytes.data(), &header, sizeof(header));
    }
    const uint32_t crc = Crc32c(0, bytes.data(), offsetof(ParameterFileHeader, crc));
    std::memcpy(&bytes[offsetof(ParameterFileHeader, crc)], &crc, sizeof(crc));
    return bytes;
  }

  std::string folder_, path_;
};

}  // namespace tsps

#endif  // TFSPS_TESTS_PARAMETER_FILE_FIXTURE_H_
