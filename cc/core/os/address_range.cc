#include "core/os/address_range.h"

#include <sys/resource.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/base/limits.h"

namespace tsps {
namespace {

constexpr uint64_t kUserSpace = 128ull << 40;  // of x86-64 with four-level page tables
constexpr uint64_t kShares = 16;
// A range is never smaller, however little is left.
constexpr uint64_t kSmallestShare = 64ull << 20;
// A tmpfs can be remounted with a larger size while the process runs.
constexpr uint64_t kSmallestCapacity = 16ull << 30;

}  // namespace

AddressSpace AddressSpaceOfProcess() {
  AddressSpace space = {kUserSpace, 0};
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0) {
    space.total = std::min(space.total, static_cast<uint64_t>(limit.rlim_cur));
  }
  std::ifstream in("/proc/self/statm");
  uint64_t pages = 0;
  if (in >> pages) space.taken = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return space;
}

uint64_t AddressRange(uint64_t bound, uint64_t size, uint64_t capacity, const AddressSpace& space) {
  const uint64_t whole = std::max<uint64_t>(space.total / kShares, 1);
  const uint64_t halvings = std::min<uint64_t>(space.taken / whole, 63);
  const uint64_t share = std::max({whole >> halvings, kSmallestShare, 2 * size});
  const uint64_t useful = std::min(bound, std::max(capacity, kSmallestCapacity));
  const uint64_t range = std::max(std::min(share, useful), size);
  return (range + kPageBytes - 1) / kPageBytes * kPageBytes;
}

uint64_t AddressRangeFor(int fd, uint64_t bound, uint64_t size) {
  struct statfs fs;
  uint64_t capacity = 0;
  if (fstatfs(fd, &fs) == 0) {
    capacity = static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize);
  }
  return AddressRange(bound, size, capacity, AddressSpaceOfProcess());
}

}  // namespace tsps
