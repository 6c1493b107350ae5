// PageBuffer: private memory that begins on a page, for direct reads and writes of files
// (O_DIRECT).
//
// The destructor returns the memory to the system at once. A heap would keep most of the memory
// that short-lived threads have used.
#ifndef TFSPS_CORE_TIER_PAGE_BUFFER_H_
#define TFSPS_CORE_TIER_PAGE_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include "core/base/limits.h"
#include "core/base/status.h"

namespace tsps {

class PageBuffer {
 public:
  PageBuffer() = default;
  // Allocates `bytes`, rounded up to pages. ResourceExhausted: the system has no memory.
  static Result<PageBuffer> Make(size_t bytes) {
    PageBuffer buffer;
    const size_t pages = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (pages == 0) return buffer;
    void* const data =
        mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return Error(Code::kResourceExhausted, "cannot allocate ", pages,
                   " bytes of memory to read and write records on disk. The records are unchanged. "
                   "Free memory on this machine");
    }
    buffer.data_ = {static_cast<char*>(data), Unmap{pages}};
    return buffer;
  }

  char* data() const { return data_.get(); }
  size_t bytes() const { return data_.get_deleter().bytes; }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(char* data) const { munmap(data, bytes); }
  };
  std::unique_ptr<char, Unmap> data_{nullptr, Unmap{0}};
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_PAGE_BUFFER_H_
