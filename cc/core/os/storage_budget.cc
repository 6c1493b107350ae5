#include "core/os/storage_budget.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <fstream>

namespace tsps {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;
// Stays free for page tables, and for other memory of the processes of the cgroup. If the last page
// were reserved, the next malloc of any of them would kill it.
constexpr uint64_t kCgroupMargin = 32ull << 20;

// Returns the number in a file; kUnlimited for "max", a missing file, and the huge number that v1
// has for "no limit".
uint64_t ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (!(in >> value)) return kUnlimited;
  return value >= (1ull << 62) ? kUnlimited : value;
}

// Returns the bytes of page cache that the kernel would drop under pressure. Pages of tmpfs are on
// the anonymous lists, so they are not among these.
uint64_t ReclaimableCache(const std::string& stat_path) {
  std::ifstream in(stat_path);
  std::string field;
  uint64_t value = 0;
  uint64_t sum = 0;
  while (in >> field >> value) {
    if (field == "inactive_file" || field == "active_file") sum += value;
  }
  return sum;
}

uint64_t HeadroomOf(const std::string& dir, const char* limit_file, const char* usage_file) {
  const uint64_t limit = ReadNumber(dir + limit_file);
  if (limit == kUnlimited) return kUnlimited;
  const uint64_t usage = ReadNumber(dir + usage_file);
  if (usage == kUnlimited) return kUnlimited;
  const uint64_t held = usage - std::min(usage, ReclaimableCache(dir + "/memory.stat"));
  return limit - std::min(limit, held);
}

// Returns the smallest headroom of `path` and its ancestors below `root`.
uint64_t HeadroomUpwards(const std::string& root, std::string path, const char* limit_file,
                         const char* usage_file) {
  uint64_t headroom = kUnlimited;
  while (true) {
    headroom = std::min(headroom, HeadroomOf(root + path, limit_file, usage_file));
    if (path.empty() || path == "/") return headroom;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

uint64_t FreeBytes(const struct statfs& fs) {
  return static_cast<uint64_t>(fs.f_bavail) * static_cast<uint64_t>(fs.f_bsize);
}

Status Full(const std::string& path, uint64_t bytes, const struct statfs& fs) {
  return Error(Code::kResourceExhausted, "no space for ", path, ": it needs ", bytes,
               " more bytes, and the file system has ", FreeBytes(fs),
               " (containers give /dev/shm 64 MiB by default; enlarge it, or set TFSPS_DIR)");
}

Result<struct statfs> FileSystemOf(const std::string& path) {
  struct statfs fs;
  if (statfs(path.c_str(), &fs) != 0)
    return ErrnoError("cannot read the free space of the file system of", path);
  return fs;
}

}  // namespace

uint64_t CgroupHeadroom(const std::string& proc_cgroup, const std::string& cgroup_root) {
  uint64_t headroom = kUnlimited;
  std::ifstream in(proc_cgroup);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      headroom =
          std::min(headroom, HeadroomUpwards(cgroup_root, path, "/memory.max", "/memory.current"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      headroom =
          std::min(headroom, HeadroomUpwards(cgroup_root + "/memory", path,
                                             "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
    }
  }
  return headroom;
}

Status CheckRoom(const std::string& path, uint64_t bytes) {
  TSPS_ASSIGN_OR_RETURN(const struct statfs fs, FileSystemOf(path));
  if (bytes > FreeBytes(fs)) return Full(path, bytes, fs);
  if (fs.f_type == TMPFS_MAGIC) {
    const uint64_t headroom = CgroupHeadroom();
    if (headroom != kUnlimited && bytes + kCgroupMargin > headroom) {
      return Error(Code::kResourceExhausted, "no space for ", path, ": it needs ", bytes,
                   " more bytes, and the memory cgroup allows ", headroom,
                   " (raise the container's or job's memory limit, or set TFSPS_DIR to a disk)");
    }
  }
  return Status();
}

Status RoomTaken(const std::string& path, uint64_t bytes) {
  TSPS_ASSIGN_OR_RETURN(const struct statfs fs, FileSystemOf(path));
  return Full(path, bytes, fs);
}

}  // namespace tsps
