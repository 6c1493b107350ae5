// RacyRead copies memory that the writer may be changing. The caller then checks the sequence word
// and discards the copy if it lost the race. It is a memcpy that ThreadSanitizer does not check.
// RacyView serves code that reads such memory in place and works for any bits.
#ifndef TFSPS_CORE_BASE_RACY_COPY_H_
#define TFSPS_CORE_BASE_RACY_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tsps {

#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"), noinline)) inline void RacyRead(void* to, const void* from,
                                                                      size_t bytes) {
  const volatile unsigned char* source = static_cast<const volatile unsigned char*>(from);
  volatile unsigned char* target = static_cast<volatile unsigned char*>(to);
  for (size_t i = 0; i < bytes; ++i) target[i] = source[i];
}

inline const void* RacyView(const void* from, size_t bytes, void* scratch) {
  RacyRead(scratch, from, bytes);
  return scratch;
}
#else
inline void RacyRead(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // an empty vector has null pointers
}

// Returns `from`, or under ThreadSanitizer a copy of it in `scratch`, which has `bytes`.
inline const void* RacyView(const void* from, size_t /*bytes*/, void* /*scratch*/) { return from; }
#endif

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_RACY_COPY_H_
