// SortKeys: int64 keys in ascending order, each with where it came from.
#ifndef TFSPS_CORE_GRADIENTS_SORT_KEYS_H_
#define TFSPS_CORE_GRADIENTS_SORT_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tsps {

struct KeyPosition {
  int64_t key;
  uint32_t position;
};

// Equal keys stay in the order of their positions. At most 2^32 - 1 keys (the caller checks).
std::unique_ptr<KeyPosition[]> SortKeys(const int64_t* keys, size_t n);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_SORT_KEYS_H_
