// Evictions: which rows of a tiered table leave memory for others: the least frequently used ones,
// by counts that halve in 1,024 steps.
#ifndef TFSPS_CORE_GROUP_EVICTIONS_H_
#define TFSPS_CORE_GROUP_EVICTIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/table/planes.h"
#include "core/tier/announced_rows.h"
#include "core/tier/use_counts.h"

namespace tsps {

class Evictions {
 public:
  // Row numbers are below this from now on.
  void Resize(size_t rows) {
    if (rows > counts_.rows()) counts_.Resize(rows);
  }
  // A mutation uses these rows.
  void Used(const uint32_t* rows, size_t n) { counts_.Count(rows, n); }
  void NextStep();
  // Rows that other keys have from now on.
  void Taken(const std::vector<uint32_t>& rows);

  // Who may go, in which step of the group.
  struct Rows {
    const PlaneList& planes;
    const AnnouncedRows* announced;
    uint64_t step;
  };
  // n rows with a key, none of `kept`; fewer, if there are no more. Of the announced ones none, as
  // long as there are others.
  std::vector<uint32_t> Choose(size_t n, Rows rows, const std::vector<uint32_t>& kept);

 private:
  struct Candidate {
    uint32_t row;
    float count;  // when it was chosen: one that is used more by now stays
  };
  bool MayGo(uint32_t row, const Rows& rows) const;
  void Refill(size_t n, const Rows& rows);
  void Take(size_t n, const Rows& rows, std::vector<uint32_t>* taken);

  UseCounts counts_;
  std::vector<Candidate> candidates_;  // taken from the end
  std::vector<bool> kept_;             // by row; false between calls
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_EVICTIONS_H_
