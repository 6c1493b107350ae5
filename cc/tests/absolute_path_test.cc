#include "core/os/absolute_path.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

namespace tsps {
namespace {

std::string NormalPath(const std::string& path) {
  std::string normal = std::filesystem::absolute(path).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

TEST(AbsolutePath, IsTheNormalPathOfTheStandardLibrary) {
  const char* const parts[] = {"/", "/", "/", "a", "bc", ".", "..", "...", "d.e", "//", "../"};
  std::mt19937 random(0);
  for (int draw = 0; draw < 20'000; ++draw) {
    std::string path;
    for (int n = 1 + random() % 8; n > 0; --n) path += parts[random() % std::size(parts)];
    ASSERT_EQ(AbsolutePath(path), NormalPath(path)) << path;
  }
}

TEST(AbsolutePath, OfNothingIsTheCurrentDirectory) {
  EXPECT_EQ(AbsolutePath(""), std::filesystem::current_path().string());
}

}  // namespace
}  // namespace tsps
