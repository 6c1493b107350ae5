#include "core/os/absolute_path.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>

namespace tsps {

std::string AbsolutePath(const std::string& path) {
  std::string whole = path;
  char current[PATH_MAX];
  if (path.compare(0, 1, "/") != 0 && getcwd(current, sizeof current) != nullptr) {
    whole = std::string(current) + "/" + path;
  }
  std::string result;
  for (size_t begin = 0; begin <= whole.size();) {
    const size_t end = std::min(whole.find('/', begin), whole.size());
    const std::string name = whole.substr(begin, end - begin);
    if (name == "..") {
      result.erase(std::min(result.rfind('/'), result.size()));
    } else if (!name.empty() && name != ".") {
      result += "/" + name;
    }
    begin = end + 1;
  }
  return result.empty() ? "/" : result;
}

}  // namespace tsps
