// Sleeping on a 32-bit word in shared memory, and waking who sleeps. Linux's futex.
#ifndef TFSPS_CORE_BASE_FUTEX_H_
#define TFSPS_CORE_BASE_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace tsps {

// Futexes are 32-bit: the low half of a word that changes with every event.
inline const void* FutexWord(const std::atomic<uint64_t>& word) { return &word; }

// Sleeps until another process wakes sleepers of `word`, for `ms` at most, unless `word` no longer
// is `seen`. May return early. The mapping may be read-only.
inline void FutexWait(const std::atomic<uint64_t>& word, uint64_t seen, int ms) {
  const timespec timeout = {ms / 1000, (ms % 1000) * 1000000L};
  syscall(SYS_futex, FutexWord(word), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr,
          0);
}

inline void FutexWakeAll(const std::atomic<uint64_t>& word) {
  syscall(SYS_futex, FutexWord(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_FUTEX_H_
