// Checks that there is space for more shared memory. This happens before storage is reserved:
// inside a memory cgroup, an allocation on tmpfs beyond the limit kills the process (SIGKILL) and
// returns no error.
#ifndef TFSPS_CORE_OS_STORAGE_BUDGET_H_
#define TFSPS_CORE_OS_STORAGE_BUDGET_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace tsps {

// Returns the bytes that this process's memory cgroups (v1 or v2, all ancestors) still allow,
// counting reclaimable page cache as free; UINT64_MAX if there is no limit. Only tests pass other
// paths.
uint64_t CgroupHeadroom(const std::string& proc_cgroup = "/proc/self/cgroup",
                        const std::string& cgroup_root = "/sys/fs/cgroup");

// Returns ResourceExhausted unless the file system of `path` has `bytes` free and, for tmpfs, the
// memory cgroup allows so many more. The message names the path and both numbers.
Status CheckRoom(const std::string& path, uint64_t bytes);

// Returns CheckRoom's error for a full file system. It is for an allocation that failed with ENOSPC
// although CheckRoom had succeeded, because another thread or process was faster.
Status RoomTaken(const std::string& path, uint64_t bytes);

}  // namespace tsps

#endif  // TFSPS_CORE_OS_STORAGE_BUDGET_H_
