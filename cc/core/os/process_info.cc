#include "core/os/process_info.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace tsps {

std::string DescribeProcess(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(in, line)) return "gone";
  // The line is: pid (name) state ... The name may contain any characters.
  const size_t end = line.rfind(") ");
  const char state = end == std::string::npos ? '?' : line[end + 2];
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "alive and waiting for something";
    case 'D':
      return "waiting for a disk";
    case 'T':
      return "stopped by a signal";
    case 't':
      return "stopped by a debugger";
    case 'Z':
    case 'X':
      return "gone";
    default:
      return "alive";
  }
}

uint64_t StartOfThisProcess() {
  std::FILE* file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return 0;
  char text[1024];
  const size_t n = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[n] = 0;
  // The start time is field 22.
  const char* at = std::strrchr(text, ')');  // the command name may contain anything
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

}  // namespace tsps
