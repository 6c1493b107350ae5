// DirectWriter: writes a file from its beginning to its end, past the page cache where the file
// system is a local one that can: a file of 2 MiB or more, but for a rest of less than a page. What
// is written once and is large had better not be cached: pages would have to be found, filled and
// brought to the disk by threads of the kernel, and later taken back, and what others have in the
// cache would go for it. A network file system has each direct write wait for the server's disk.
#ifndef TFSPS_CORE_OS_DIRECT_WRITER_H_
#define TFSPS_CORE_OS_DIRECT_WRITER_H_

#include <cassert>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace tsps {

class DirectWriter {
 public:
  // `name` is for errors. `most`: bytes that are added between two calls of Write.
  DirectWriter(int fd, std::string name, size_t most);

  // Where the next n bytes go, until the next call. Not after an error: there may be no room.
  char* Add(size_t n) {
    assert(size_ + n <= room_);
    char* const at = data_.get() + size_;
    size_ += n;
    return at;
  }
  // What has been added and not been written.
  const char* data() const { return data_.get(); }
  size_t size() const { return size_; }
  // There is enough for a write.
  bool full() const { return size_ >= kBytes; }
  // Writes whole pages, and keeps the rest.
  Status Write();
  // Writes the rest, too. Nothing can be added then.
  Status Finish();

 private:
  static constexpr size_t kBytes = 2u << 20;
  static constexpr size_t kPage = 4096;  // few file systems want more; those are written otherwise

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
