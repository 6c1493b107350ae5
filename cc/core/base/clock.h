// Clocks in nanoseconds, for figures.
#ifndef TFSPS_CORE_BASE_CLOCK_H_
#define TFSPS_CORE_BASE_CLOCK_H_

#include <cstdint>
#include <ctime>

namespace tsps {

inline uint64_t ReadClock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

inline uint64_t NowNs() { return ReadClock(CLOCK_MONOTONIC); }
inline uint64_t ThreadNs() { return ReadClock(CLOCK_THREAD_CPUTIME_ID); }  // of this thread alone

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_CLOCK_H_
