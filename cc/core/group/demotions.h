// Demotions: chooses which rows of a tiered table leave memory to free space for others.
//
// It goes through all row numbers in a circle, a slice at a time, and chooses the rows of the slice
// that were used least, by counts that halve every 1,024 steps. So the work of a step depends on
// the rows that it moves, not on those in memory. In a simulation (Zipf's law with exponents of .8
// and 1.05, a quarter of a million keys in memory), slices of six times the wanted rows made at
// most 1 % more ids miss than a choice from all rows.
#ifndef TFSPS_CORE_GROUP_DEMOTIONS_H_
#define TFSPS_CORE_GROUP_DEMOTIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tier/announced_rows.h"
#include "core/tier/use_counts.h"

namespace tsps {

// Belongs to the group's writer. Not thread-safe.
class Demotions {
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
    const uint32_t* changed_generations;  // by row; kFreeRow: the row has no key
    const AnnouncedRows* announced;       // null: none
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
  // Makes the least used rows of the next slice candidates for n places. The slice has at most
  // `most` rows; returns how many.
  size_t NextSlice(size_t n, size_t most, const Rows& rows);
  void Take(size_t n, const Rows& rows, std::vector<uint32_t>* taken);

  UseCounts counts_;
  uint32_t hand_ = 0;                  // the row with which the next slice begins
  std::vector<Candidate> candidates_;  // consumed from the end
  std::vector<bool> kept_;             // by row; false between calls
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_DEMOTIONS_H_
