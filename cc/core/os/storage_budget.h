// Is there room for more shared memory? Asked before storage is reserved, because inside a memory
// cgroup an allocation on tmpfs past the limit is a SIGKILL of the process, not an errno.
#ifndef TFSPS_CORE_OS_STORAGE_BUDGET_H_
#define TFSPS_CORE_OS_STORAGE_BUDGET_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

// Bytes that this process's memory cgroups (v1 or v2, every ancestor) still allow, reclaimable page
// cache counted as free; UINT64_MAX when there is no limit. The arguments are the real paths except
// in tests.
uint64_t CgroupHeadroom(const std::string& proc_cgroup = "/proc/self/cgroup",
                        const std::string& cgroup_root = "/sys/fs/cgroup");

// ResourceExhausted, naming path, wanted and available bytes, unless the file system of `path` and,
// for tmpfs, the memory cgroup have room for `bytes` more.
Status CheckRoom(const std::string& path, uint64_t bytes);

// CheckRoom's error for a file system without room, for the allocation that met ENOSPC after
// CheckRoom had found room: another thread or process was faster.
Status RoomTaken(const std::string& path, uint64_t bytes);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_STORAGE_BUDGET_H_
