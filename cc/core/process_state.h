// What can be told about another process from outside.
#ifndef TFSPS_CORE_PROCESS_STATE_H_
#define TFSPS_CORE_PROCESS_STATE_H_

#include <cstdint>
#include <string>

namespace tsps {

// "stopped by a signal", "stopped by a debugger", "running", "waiting for a disk", "gone", ... in
// words that follow "is". "alive" when the kernel tells something else. `pid` counts in this
// process's PID namespace: a number from another one may be somebody else's here.
std::string ProcessState(int64_t pid);

}  // namespace tsps

#endif  // TFSPS_CORE_PROCESS_STATE_H_
