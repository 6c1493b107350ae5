// DirectWriter: writes a file from beginning to end, past the page cache. It does so for files of 2
// MiB or more on local file systems that support it, except for a last part of less than a page. A
// large file that is written once should not be cached: threads of the kernel would find, fill,
// write and later reclaim its pages, and would drop what others have in the cache. On network file
// systems each direct write would wait for the server's disk.
#ifndef TFSPS_CORE_OS_DIRECT_WRITER_H_
#define TFSPS_CORE_OS_DIRECT_WRITER_H_

#include <cassert>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

// A buffer and the file that it is written to. Not thread-safe.
class DirectWriter {
 public:
  // Writes to the open file `fd`, which stays the caller's. `name` is for error messages. `most` is
  // the largest number of bytes that are added between two calls of Write.
  DirectWriter(int fd, std::string name, size_t most);

  // Returns where to put the next n bytes. The pointer is valid until the next call of a method.
  // Must not be called after an error, because the buffer may be full.
  char* Add(size_t n) {
    assert(size_ + n <= room_);
    char* const at = data_.get() + size_;
    size_ += n;
    return at;
  }
  // The bytes that were added and are not written yet.
  const char* data() const { return data_.get(); }
  size_t size() const { return size_; }
  // Whether there is enough for a call of Write.
  bool full() const { return size_ >= kBytes; }
  // Writes all whole pages and keeps the remaining bytes.
  Status Write();
  // Writes all bytes. Nothing can be added afterwards.
  Status Finish();

 private:
  static constexpr size_t kBytes = 2u << 20;
  static constexpr size_t kPage = 4096;  // larger blocks are written through the page cache

  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  Status WriteFirst(size_t n);
  bool SetDirect(bool direct);

  const int fd_;
  const std::string name_;
  const size_t room_;
  std::unique_ptr<char, Free> data_;
  size_t size_ = 0;
  bool tried_ = false;
  bool direct_ = false;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_DIRECT_WRITER_H_
