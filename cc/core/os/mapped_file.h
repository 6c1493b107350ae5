// MappedFile: a file that is mapped once, over a reserved address range, and grows in place.
//
// Pages beyond the end of the file are address space only. The writer reserves storage (allocated
// blocks, never a hole) before anybody accesses it. The file never shrinks, so valid addresses stay
// valid. A file may outgrow the range of one process (address_range.h). Reserve or CheckRange then
// fails in that process until it opens the file again.
//
// Ranges begin at a multiple of 2 MiB, as huge pages must. The writer collapses small pages of
// files into huge ones (CollapseNext). Rows are read at random, and for a row in a small page the
// processor must first find the page, which is another access to memory.
//
// No descriptor stays open, because a process may map thousands of files. To write or to grow a
// file, this class opens its path again and checks that it leads to the mapped file. It never
// touches another file under the same path.
#ifndef TFSPS_CORE_OS_MAPPED_FILE_H_
#define TFSPS_CORE_OS_MAPPED_FILE_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tsps {

// Thread-safe, except where a method says otherwise. Several processes may map one file.
class MappedFile {
 public:
  // Creates a file with mode 0600, which must not exist, reserves `bytes`, and maps it writable.
  // `bound` is a size that the file can never exceed; SIZE_MAX if only the file system limits it.
  static Result<std::unique_ptr<MappedFile>> Create(const std::string& path, size_t bytes,
                                                    size_t bound);
  // Maps an existing file read-only. DataLoss: it is shorter than `min_bytes`. PermissionDenied: it
  // is a symbolic link or another user's file.
  static Result<std::unique_ptr<MappedFile>> Open(const std::string& path, size_t min_bytes,
                                                  size_t bound);
  ~MappedFile();

  // Replaces the read-only mapping by a writable one at the same addresses. DataLoss: the file was
  // removed or replaced.
  Status MakeWritable();

  char* data() const { return data_; }
  // The bytes that this process knows to be in the file, as far as the range reaches. RefreshSize
  // asks the file system first, because another process may have grown the file.
  size_t size() const { return size_.load(std::memory_order_acquire); }
  size_t RefreshSize();
  size_t range() const { return range_; }
  // Returns ResourceExhausted, with the remedy, if the range has fewer than `bytes`.
  Status CheckRange(size_t bytes) const;
  // Returns DataLoss if the file was removed, or its path leads to another file. Call it before
  // files in the same folder are created, opened or removed: they may belong to another group.
  Status CheckInPlace() const;
  const std::string& path() const { return path_; }

  // Collapses the next 2 MiB of the file into a huge page, if they are not in one and the machine
  // supports it. Files of less than 32 MiB stay as they are: the processor's buffers hold nearly
  // all their page addresses. Returns false if nothing is left to do until the file grows. One
  // thread at a time may call it.
  bool CollapseNext();
  // Returns whether CollapseNext has anything to do. Any thread may ask.
  bool HasToCollapse() const;
  // Disables CollapseNext for this file.
  void KeepSmallPages() { collapsed_ = range_; }

  // Makes size() >= bytes: checks that there is space, then allocates blocks, at most 64 MiB at a
  // time. Thread-safe. After an error the file keeps the blocks that were allocated.
  Status Reserve(size_t bytes);

 private:
  MappedFile(std::string path, size_t range) : path_(std::move(path)), range_(range) {}
  Status Map(int fd, int protection, bool replace);
  // Opens the file again, writable. DataLoss: the path leads to another file. `what` begins the
  // message of other errors.
  Result<int> Reopen(const char* what) const;
  bool IsThisFile(const struct stat& info) const;
  size_t InRange(const struct stat& info) const;
  void RaiseSize(size_t bytes);

  const std::string path_;
  const size_t range_;
  char* data_ = nullptr;
  // The file system gives these numbers to no other file while this one is mapped.
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::atomic<size_t> size_{0};
  std::atomic<size_t> collapsed_{0};  // bytes that CollapseNext has passed
  std::mutex grow_mutex_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_MAPPED_FILE_H_
