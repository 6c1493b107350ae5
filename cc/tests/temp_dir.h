// A private folder in shared memory. The destructor removes it with its contents.
#ifndef TFSPS_TESTS_TEMP_DIR_H_
#define TFSPS_TESTS_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace tsps {

class TempDir {
 public:
  TempDir() {
    char name[] = "/dev/shm/tsps-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  void Clear() const {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      std::filesystem::remove_all(entry.path());
    }
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tsps

#endif  // TFSPS_TESTS_TEMP_DIR_H_
