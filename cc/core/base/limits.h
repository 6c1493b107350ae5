// Limits that files, shared memory and messages between nodes have in common.
#ifndef TFSPS_CORE_BASE_LIMITS_H_
#define TFSPS_CORE_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace tsps {

constexpr size_t kPageBytes = 4096;
constexpr int kMaxTables = 1024;    // in a group, and in a step
constexpr int64_t kMaxDim = 65536;  // floats per row

}  // namespace tsps

#endif  // TFSPS_CORE_BASE_LIMITS_H_
