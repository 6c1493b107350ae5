// Sleeps on a 32-bit word in shared memory, and wakes its sleepers, with Linux's futex.
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

// Returns the address of the low half of the word, because futexes have 32 bits. Every event must
// change that half.
inline const void* FutexWord(const std::atomic<uint64_t>& word) { return &word; }

// Sleeps until another process wakes the sleepers of `word`, but at most `ms`. Returns at once if
// `word` differs from `seen`; may also return early for other reasons. The mapping may be
// read-only.
inline void FutexWait(const std::atomic<uint64_t>& word, uint64_t seen, int ms) {
  const timespec timeout = {ms / 1000, (ms % 1000) * 1000000L};
  syscall(SYS_futex, FutexWord(word), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr,
          0);
}

// Wakes all processes that sleep on `word`.
inline void FutexWakeAll(const std::atomic<uint64_t>& word) {
  syscall(SYS_futex, FutexWord(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_FUTEX_H_
