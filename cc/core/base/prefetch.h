// Prefetching of rows. The rows of a large table are scattered in memory and not in a cache, so
// loops over many rows prefetch some of them ahead of the one in progress.
#ifndef TFSPS_CORE_BASE_PREFETCH_H_
#define TFSPS_CORE_BASE_PREFETCH_H_

#include <algorithm>
#include <cstddef>

namespace tsps {

// Prefetches a cache line. The empty statement has an effect for GCC. Without it, GCC deletes calls
// of functions that only prefetch, because they have no effect: an Adagrad step took twice as long.
inline void PrefetchLine(const void* address) {
  __builtin_prefetch(address);
  __asm__ volatile("" : : "r"(address));
}

// Prefetches the first 512 bytes at most: the hardware prefetches the following ones by itself.
inline void Prefetch(const void* address, size_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  const size_t end = std::min<size_t>(bytes, 512);
  for (size_t offset = 0; offset < end; offset += 64) PrefetchLine(begin + offset);
}

// Calls prefetch(j) for the item j that a loop reaches kAhead items after item i, if there is one
// before `end`. Call it at the start of each round of the loop.
template <size_t kAhead = 16, typename Fn>
void PrefetchAhead(size_t i, size_t end, const Fn& prefetch) {
  if (i + kAhead < end) prefetch(i + kAhead);
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_PREFETCH_H_
