// Reads and overwrites numbers in files, for tests that inspect or damage files.
#ifndef TFSPS_TESTS_FILE_VALUES_H_
#define TFSPS_TESTS_FILE_VALUES_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <string>

namespace tsps {

template <typename T>
T ValueAt(const std::string& path, size_t offset) {
  T value = {};
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(reinterpret_cast<char*>(&value), sizeof(value));
  return value;
}

template <typename T>
void SetValueAt(const std::string& path, size_t offset, T value) {
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_EQ(pwrite(fd, &value, sizeof(value), static_cast<off_t>(offset)),
            static_cast<ssize_t>(sizeof(value)));
  close(fd);
}

}  // namespace tsps

#endif  // TFSPS_TESTS_FILE_VALUES_H_
