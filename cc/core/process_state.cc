#include "core/process_state.h"

#include <fstream>

namespace tsps {

std::string ProcessState(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(in, line)) return "gone";
  // pid (name, which may hold anything) state ...
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

}  // namespace tsps
