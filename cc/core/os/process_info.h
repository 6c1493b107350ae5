// What the kernel tells of processes.
#ifndef TFSPS_CORE_OS_PROCESS_INFO_H_
#define TFSPS_CORE_OS_PROCESS_INFO_H_

#include <cstdint>
#include <string>

namespace tsps {

// "stopped by a signal", "stopped by a debugger", "running", "waiting for a disk", "gone", ... in
// words that follow "is". "alive" when the kernel tells something else. `pid` counts in this
// process's PID namespace: a number from another one may be somebody else's here.
std::string DescribeProcess(int64_t pid);

// When this process started, in clock ticks since boot: with the pid it identifies a process even
// when pids are used again. 0 if the kernel does not tell.
uint64_t StartOfThisProcess();

}  // namespace tsps

#endif  // TFSPS_CORE_OS_PROCESS_INFO_H_
