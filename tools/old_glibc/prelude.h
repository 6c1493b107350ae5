// The compiler reads this file before every source. libstdc++ was configured for this machine's
// glibc. The old one lacks functions with a clock argument (since 2.30), so waits that end at a
// time of the steady clock use libstdc++'s older way, which wakes up by the system clock and
// compares with the steady one.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK
