// Clocks in nanoseconds, for counters and time limits.
#ifndef TFSPS_CORE_BASE_CLOCK_H_
#define TFSPS_CORE_BASE_CLOCK_H_

#include <cstdint>
#include <ctime>

namespace tsps {

// Returns the time of a POSIX clock.
inline uint64_t ReadClock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Returns the monotonic time, which all processes of the machine share.
inline uint64_t NowNs() { return ReadClock(CLOCK_MONOTONIC); }
// Returns the processor time of this thread alone.
inline uint64_t ThreadNs() { return ReadClock(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_CLOCK_H_
