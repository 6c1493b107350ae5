#include "core/os/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/base/fault_point.h"
#include "core/os/address_range.h"
#include "core/os/directory.h"
#include "core/os/storage_budget.h"

namespace tsps {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2u << 20;
constexpr size_t kReserveChunk = 64u << 20;
constexpr size_t kSmallestCollapsed = 32u << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which older headers lack

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status Replaced(const std::string& path) {
  return Error(Code::kDataLoss, path, " was replaced by another file while it was in use");
}

// Returns why the path of a mapped file does not lead to it. Reads errno.
Status OutOfReach(const char* what, const std::string& path) {
  if (errno != ENOENT && errno != ENOTDIR) return ErrnoError(what, path);
  return Error(Code::kDataLoss, path, " was removed while it was in use");
}

// Reserves an address range that begins at a multiple of kHugePage, if it is large enough to have
// huge pages.
Result<void*> TakeRange(size_t range, const std::string& path) {
  const size_t more = range >= kHugePage ? kHugePage - kPage : 0;
  void* const reserved =
      mmap(nullptr, range + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return ErrnoError("cannot map", path);
  char* const begin = static_cast<char*>(reserved);
  const size_t before =
      more == 0 ? 0 : (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  if (more > before) munmap(begin + before + range, more - before);
  return static_cast<void*>(begin + before);
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::Create(const std::string& path, size_t bytes,
                                                       size_t bound) {
  TSPS_ASSIGN_OR_RETURN(const int created,
                        OpenRegularFile(path, O_RDWR | O_CREAT | O_EXCL, "cannot create"));
  const FileDescriptor fd(created);
  std::unique_ptr<MappedFile> file(
      new MappedFile(path, static_cast<size_t>(AddressRangeFor(fd.get(), bound, bytes))));
  TSPS_RETURN_IF_ERROR(file->Map(fd.get(), PROT_READ | PROT_WRITE, false));
  TSPS_RETURN_IF_ERROR(file->Reserve(bytes));
  return file;
}

Result<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path, size_t min_bytes,
                                                     size_t bound) {
  TSPS_ASSIGN_OR_RETURN(const int opened, OpenRegularFile(path, O_RDONLY, "cannot open"));
  const FileDescriptor fd(opened);
  TSPS_ASSIGN_OR_RETURN(const struct stat info, CheckRegularFile(fd.get(), path));
  const size_t size = static_cast<size_t>(info.st_size);
  if (size < min_bytes) {
    return Error(Code::kDataLoss, path, " is truncated: it has ", size, " bytes, and at least ",
                 min_bytes, " are expected");
  }
  std::unique_ptr<MappedFile> file(
      new MappedFile(path, static_cast<size_t>(AddressRangeFor(fd.get(), bound, size))));
  TSPS_RETURN_IF_ERROR(file->Map(fd.get(), PROT_READ, false));
  return file;
}

Status MappedFile::Map(int fd, int protection, bool replace) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoError("cannot stat", path_);
  void* place = data_;
  if (!replace) {
    TSPS_ASSIGN_OR_RETURN(place, TakeRange(range_, path_));
  }
  void* address = mmap(place, range_, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (address == MAP_FAILED) {
    const Status status = ErrnoError("cannot map", path_);
    if (!replace) munmap(place, range_);
    return status;
  }
  if (!replace) {  // a replaced mapping keeps them, and other threads may read them
    data_ = static_cast<char*>(address);
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
  size_.store(InRange(info), std::memory_order_release);
  return Status();
}

bool MappedFile::IsThisFile(const struct stat& info) const {
  return info.st_dev == device_ && info.st_ino == inode_;
}

Status MappedFile::CheckInPlace() const {
  struct stat info;
  if (lstat(path_.c_str(), &info) != 0) return OutOfReach("cannot stat", path_);
  return IsThisFile(info) ? Status() : Replaced(path_);
}

Result<int> MappedFile::Reopen(const char* what) const {
  const int fd = open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return OutOfReach(what, path_);
  struct stat info;
  if (fstat(fd, &info) == 0 && IsThisFile(info)) return fd;
  close(fd);
  return Replaced(path_);
}

size_t MappedFile::InRange(const struct stat& info) const {
  return std::min(static_cast<size_t>(info.st_size), range_);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, range_);
}

Status MappedFile::MakeWritable() {
  TSPS_ASSIGN_OR_RETURN(const int reopened, Reopen("cannot open for writing"));
  const FileDescriptor fd(reopened);
  return Map(fd.get(), PROT_READ | PROT_WRITE, true);
}

size_t MappedFile::RefreshSize() {
  struct stat info;
  if (stat(path_.c_str(), &info) == 0 && IsThisFile(info)) RaiseSize(InRange(info));
  return size();
}

void MappedFile::RaiseSize(size_t bytes) {
  size_t known = size_.load(std::memory_order_relaxed);
  while (bytes > known && !size_.compare_exchange_weak(known, bytes, std::memory_order_release)) {
  }
}

Status MappedFile::CheckRange(size_t bytes) const {
  if (bytes <= range_) return Status();
  return Error(
      Code::kResourceExhausted, path_, " needs ", bytes,
      " bytes, and this process has mapped it over an address range of ", range_,
      " bytes. Close all tables of the group in this process and open them again, or start "
      "the process again: the new range has at least twice the size of the file");
}

bool MappedFile::HasToCollapse() const {
  static const bool wanted = [] {
    const char* const choice = std::getenv("TFSPS_HUGE_PAGES");
    return choice == nullptr || std::strcmp(choice, "0") != 0;
  }();
  return wanted && size() >= kSmallestCollapsed && collapsed_ + kHugePage <= size();
}

bool MappedFile::CollapseNext() {
  if (!HasToCollapse()) return false;
  // The huge page replaces small pages; for a moment both exist.
  if (!CheckRoom(path_, kHugePage).ok()) return false;
  if (madvise(data_ + collapsed_, kHugePage, kCollapse) != 0 && errno == EINVAL) {
    collapsed_ = range_;  // this kernel or file system does not support it
    return false;
  }
  collapsed_ += kHugePage;  // after a failure, too: otherwise this would be tried forever
  return collapsed_ + kHugePage <= size();
}

Status MappedFile::Reserve(size_t bytes) {
  if (bytes <= size()) return Status();
  std::lock_guard<std::mutex> lock(grow_mutex_);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  // Below, `end` is counted here: size() may already include a chunk that another thread has seen.
  size_t end = size();
  if (bytes <= end) return Status();
  TSPS_ASSIGN_OR_RETURN(const int reopened, Reopen("cannot open for growing"));
  const FileDescriptor fd(reopened);
  // Space is checked first: a larger range is no remedy if there is no space.
  TSPS_RETURN_IF_ERROR(CheckRoom(path_, bytes - end));
  TSPS_RETURN_IF_ERROR(CheckRange(bytes));
  size_t limit = kReserveChunk;
  while (end < bytes) {
    const size_t chunk = std::min(bytes - end, limit);
    TSPS_RETURN_IF_ERROR(CheckRoom(path_, chunk));
    const int error = posix_fallocate(fd.get(), static_cast<off_t>(end), static_cast<off_t>(chunk));
    // A signal came, and nothing was allocated. Smaller chunks end before a profiler's next one.
    if (error == EINTR) {
      limit = std::max(kPage, limit / 2 / kPage * kPage);
      continue;
    }
    if (error == ENOSPC) return RoomTaken(path_, chunk);
    if (error != 0) {
      errno = error;
      return ErrnoError("cannot reserve storage for", path_);
    }
    TSPS_FAULT_POINT("reserve.grown");
    end += chunk;
    RaiseSize(end);
  }
  return Status();
}

}  // namespace tsps
