// SpaceReserve: a file that occupies space in a folder, so that compaction can write copies while
// the disk is full. What it writes then frees more space than it takes.
#ifndef TFSPS_CORE_TIER_SPACE_RESERVE_H_
#define TFSPS_CORE_TIER_SPACE_RESERVE_H_

#include <cstddef>
#include <string>

namespace tsps {

// Not thread-safe. A file that a killed process left is used again.
class SpaceReserve {
 public:
  explicit SpaceReserve(const std::string& folder) : path_(folder + "/.reserve") {}

  // Occupies this many bytes if the file does not exist yet. The disk must have much more space,
  // unless the last reserve was taken.
  void Keep(size_t bytes);
  // Lets the caller make another file of the reserve, which keeps its space. Returns its path; ""
  // if there is none.
  std::string Take();
  // Returns whether a reserve was taken and not occupied again.
  bool taken() const { return taken_; }

 private:
  const std::string path_;
  bool kept_ = false, taken_ = false;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_SPACE_RESERVE_H_
