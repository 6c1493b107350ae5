// MappedFile: a file mapped once, over a reserved address range, that grows in place.
//
// Pages beyond the file's end are address space only. The writer reserves storage (allocated
// blocks, never a hole) before anyone touches it; the file never shrinks, so addresses that were
// valid stay valid. A file may outgrow the range of one process (address_range.h): that is an error
// there, of Reserve or CheckRange, until the process opens the file again.
//
// Ranges begin at a multiple of 2 MiB, as huge pages must. The writer collapses files' pages into
// such (CollapseNext): rows are read at random, and of each one that lies in a small page the
// processor must first look the page up, in memory again.
//
// No descriptor is kept: a process may map thousands of files. What is opened again by its path, to
// be written or to grow, must be the file that is mapped; another one under its name is left alone.
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

class MappedFile {
 public:
  // Creates the file (0600; must not exist) with `bytes` reserved and maps it writable. `bound`:
  // what the file can never outgrow, SIZE_MAX if that is the file system alone.
  static Result<std::unique_ptr<MappedFile>> Create(const std::string& path, size_t bytes,
                                                    size_t bound);
  // Maps an existing file read-only. DataLoss when it is shorter than `min_bytes`; PermissionDenied
  // for symlinks and other users' files.
  static Result<std::unique_ptr<MappedFile>> Open(const std::string& path, size_t min_bytes,
                                                  size_t bound);
  ~MappedFile();

  // Replaces the read-only mapping by a writable one at the same addresses.
  Status MakeWritable();

  char* data() const { return data_; }
  // Bytes known to be in the file, of those that the range reaches. RefreshSize asks the file
  // system: another process may have grown the file.
  size_t size() const { return size_.load(std::memory_order_acquire); }
  size_t RefreshSize();
  size_t range() const { return range_; }
  // ResourceExhausted, saying what to do, if the range does not reach `bytes`.
  Status CheckRange(size_t bytes) const;
  // DataLoss if the file was removed, or another one lies under its path by now. Whoever makes,
  // opens or removes files beside this one asks first: they would be another's.
  Status CheckInPlace() const;
  const std::string& path() const { return path_; }

  // Puts the next 2 MiB of the file into one huge page, if they are not yet, and the machine can.
  // Files of less than 32 MiB are left alone: the addresses of their pages nearly fit the
  // processor's buffers. False if nothing is left to do until the file has grown. One thread at a
  // time.
  bool CollapseNext();
  // Whether it has something to do. Any thread may ask.
  bool HasToCollapse() const;
  // There is nothing to collapse from now on.
  void KeepSmallPages() { collapsed_ = range_; }

  // Makes size() >= bytes: checks room, then allocates blocks, at most 64 MiB at a time.
  // Thread-safe. An error leaves the file as long as it could be made.
  Status Reserve(size_t bytes);

 private:
  MappedFile(std::string path, size_t range) : path_(std::move(path)), range_(range) {}
  Status Map(int fd, int protection, bool replace);
  // Opens the file again. DataLoss if it is another one by now.
  Result<int> Reopen(const char* what) const;
  bool IsThisFile(const struct stat& info) const;
  size_t InRange(const struct stat& info) const;
  void RaiseSize(size_t bytes);

  const std::string path_;
  const size_t range_;
  char* data_ = nullptr;
  // Not given to another file while this one is mapped.
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::atomic<size_t> size_{0};
  std::atomic<size_t> collapsed_{0};  // bytes that CollapseNext has been through
  std::mutex grow_mutex_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_OS_MAPPED_FILE_H_
