// Facts about processes, from the kernel.
#ifndef TFSPS_CORE_OS_PROCESS_INFO_H_
#define TFSPS_CORE_OS_PROCESS_INFO_H_

#include <cstdint>
#include <string>

namespace tsps {

// Returns what the process does, in words that follow "is": "stopped by a signal", "stopped by a
// debugger", "running", "waiting for a disk", "gone"; "alive" in other states. `pid` is a number of
// this process's PID namespace; in another namespace it may be another process.
std::string DescribeProcess(int64_t pid);

// Returns when this process started, in clock ticks since boot; 0 if the kernel does not report it.
// With its pid this identifies the process even after the pid is used again.
uint64_t StartOfThisProcess();

}  // namespace tsps

#endif  // TFSPS_CORE_OS_PROCESS_INFO_H_
