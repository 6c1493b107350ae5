// libstdc++ includes this header in place of glibc's, which exists since glibc 2.32. Reference
// counts are then always atomic.
#ifndef TFSPS_OLD_GLIBC_SINGLE_THREADED_H_
#define TFSPS_OLD_GLIBC_SINGLE_THREADED_H_

static constexpr char __libc_single_threaded = 0;

#endif  // TFSPS_OLD_GLIBC_SINGLE_THREADED_H_
