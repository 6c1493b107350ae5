// Occurrences: how often the keys of a table have occurred in the training of this process since
// its last step. The backward pass of each lookup adds to it, and the step takes it.
#ifndef TFSPS_CORE_GRADIENTS_OCCURRENCES_H_
#define TFSPS_CORE_GRADIENTS_OCCURRENCES_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tsps {

// Thread-safe.
class Occurrences {
 public:
  // The ids of a feature, as positions in the keys of the lookup.
  struct Ids {
    const int32_t* positions;
    size_t n;
  };
  // Adds the occurrences of a lookup's unique keys. Returns false, and adds nothing, if a position
  // is outside of the keys.
  bool Add(const int64_t* keys, size_t n, const std::vector<Ids>& ids);
  // Overwrites counts[i] with the count of keys[i] in this rank (key_count.h), and forgets all
  // keys. A key that no lookup has added counts once. Keys are unique.
  void Take(const int64_t* keys, size_t n, int32_t* counts);

 private:
  // Lookups are joined when there are so many. When the joined ones have so many keys, they are
  // forgotten: a program may compute gradients and make no step.
  static constexpr size_t kMostLookups = 32, kMostKeys = size_t{1} << 22;

  struct Lookup {
    std::vector<int64_t> keys;          // unique
    std::vector<uint32_t> occurrences;  // of each key
  };
  static Lookup Join(const std::vector<Lookup>& lookups);

  std::mutex mutex_;
  std::vector<Lookup> lookups_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GRADIENTS_OCCURRENCES_H_
