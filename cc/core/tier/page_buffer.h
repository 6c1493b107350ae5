// PageBuffer: private memory that begins on a page, for files that are read and written past the
// page cache.
#ifndef TFSPS_CORE_TIER_PAGE_BUFFER_H_
#define TFSPS_CORE_TIER_PAGE_BUFFER_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "core/base/limits.h"
#include "core/base/status.h"

namespace tsps {

class PageBuffer {
 public:
  PageBuffer() = default;
  // ResourceExhausted if there is no memory. `bytes` are rounded up to pages.
  static Result<PageBuffer> Make(size_t bytes) {
    PageBuffer buffer;
    buffer.bytes_ = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    buffer.data_.reset(static_cast<char*>(std::aligned_alloc(kPageBytes, buffer.bytes_)));
    if (buffer.data_ == nullptr && buffer.bytes_ > 0) {
      return Error(Code::kResourceExhausted, "no memory for ", buffer.bytes_,
                   " bytes to read and write records");
    }
    return buffer;
  }

  char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_PAGE_BUFFER_H_
