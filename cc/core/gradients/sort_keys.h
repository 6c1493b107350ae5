// SortKeys: sorts int64 keys in ascending order, together with their positions in the input.
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

// Returns the sorted keys. Equal keys keep the order of their positions. The caller makes sure that
// there are at most 2^32 - 1 keys.
std::unique_ptr<KeyPosition[]> SortKeys(const int64_t* keys, size_t n);

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_SORT_KEYS_H_
