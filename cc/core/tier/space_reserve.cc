#include "core/tier/space_reserve.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace tsps {
namespace {

constexpr size_t kFreeTimes = 8;  // the free space that the reserve must be small against

}  // namespace

void SpaceReserve::Keep(size_t bytes) {
  if (kept_ || bytes == 0) return;
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return;
  struct stat info;
  struct statvfs disk;
  const bool has = fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) >= bytes;
  const size_t least = taken_ ? bytes : kFreeTimes * bytes;
  const bool may = fstatvfs(fd, &disk) == 0 && disk.f_bavail * disk.f_frsize >= least;
  // Some file systems cannot occupy space without writing it.
  kept_ = has || (may && fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0);
  if (kept_) taken_ = false;
  close(fd);
  if (!kept_) unlink(path_.c_str());
}

std::string SpaceReserve::Take() {
  if (!kept_) return "";
  kept_ = false;
  taken_ = true;
  return path_;
}

}  // namespace tsps
