// Evictions: chooses which rows of a tiered table leave memory to free space for others. It chooses
// the least frequently used rows, by counts that halve every 1,024 steps.
#ifndef TFSPS_CORE_GROUP_EVICTIONS_H_
#define TFSPS_CORE_GROUP_EVICTIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/table/planes.h"
#include "core/tier/announced_rows.h"
#include "core/tier/use_counts.h"

namespace tsps {

// Belongs to the group's writer. Not thread-safe.
class Evictions {
 public:
  // Sets the bound of row numbers; it never decreases.
  void Resize(size_t rows) {
    if (rows > counts_.rows()) counts_.Resize(rows);
  }
  // Counts a use of these rows by a mutation.
  void Used(const uint32_t* rows, size_t n) { counts_.Count(rows, n); }
  // Decays all counts by one step.
  void NextStep();
  // Restarts the counts of rows that belong to other keys from now on.
  void Taken(const std::vector<uint32_t>& rows);

  // The rows to choose from, and the step of the group.
  struct Rows {
    const PlaneList& planes;
    const AnnouncedRows* announced;  // null: none
    uint64_t step;
  };
  // Returns n rows with a key, but none of `kept`; fewer if there are not so many. It returns
  // announced rows only if there are no others.
  std::vector<uint32_t> Choose(size_t n, Rows rows, const std::vector<uint32_t>& kept);

 private:
  struct Candidate {
    uint32_t row;
    float count;  // when it became a candidate; a row that was used since then stays
  };
  bool MayLeave(uint32_t row, const Rows& rows) const;
  void Refill(size_t n, const Rows& rows);
  void Take(size_t n, const Rows& rows, std::vector<uint32_t>* taken);

  UseCounts counts_;
  std::vector<Candidate> candidates_;  // consumed from the end
  std::vector<bool> kept_;             // by row; false between calls
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_EVICTIONS_H_
