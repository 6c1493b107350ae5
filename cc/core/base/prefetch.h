// Rows of a large table lie scattered in memory, and none of them is in a cache: whoever is to read
// many asks for some of them ahead of the one at work.
#ifndef TFSPS_CORE_BASE_PREFETCH_H_
#define TFSPS_CORE_BASE_PREFETCH_H_

#include <algorithm>
#include <cstddef>

namespace tsps {

// Asks for the first 512 of `bytes`: beyond, the hardware follows by itself.
inline void Prefetch(const void* address, size_t bytes) {
  const char* const begin = static_cast<const char*>(address);
  const size_t end = std::min<size_t>(bytes, 512);
  for (size_t offset = 0; offset < end; offset += 64) __builtin_prefetch(begin + offset);
}

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_PREFETCH_H_
