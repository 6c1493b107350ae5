// What ranks lay into shared memory in an exchange (node_exchange.h), and how others find it there.
//
// The key space is cut into equal parts of a hash. A part goes to one rank in one round, which
// merges what all ranks have contributed to it.
#ifndef TFSPS_CORE_EXCHANGE_EXCHANGE_AREAS_H_
#define TFSPS_CORE_EXCHANGE_EXCHANGE_AREAS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/executor.h"
#include "core/gradients/merge.h"

namespace tsps {

// A rank's gradients of one table. Keys are unique.
struct Contribution {
  const int64_t* keys;    // int64[n]
  const int32_t* counts;  // int32[n], as in core/gradients/key_count.h; null: of this rank alone
  const float* rows;      // float[n, dim]
  size_t n;
  size_t dim;
};

// The rows of a rank's contributions in the order of their parts.
class PartOrder {
 public:
  PartOrder() = default;
  PartOrder(const std::vector<Contribution>& tables, uint32_t parts, Executor& executor);

  // Returns the bytes of an area for the rows of parts [first, first + n).
  size_t AreaBytes(const std::vector<Contribution>& tables, uint32_t first, uint32_t n) const;
  void WriteArea(const std::vector<Contribution>& tables, uint32_t first, uint32_t n, char* area,
                 Executor& executor) const;
  // The positions of a part's rows in a table's contribution, in the order of the part.
  struct Rows {
    const uint32_t* positions;
    size_t n;
  };
  Rows Part(size_t table, uint32_t part) const;

 private:
  std::vector<std::vector<uint32_t>> starts_;  // [table][part], and the end
  std::vector<std::vector<uint32_t>> order_;   // [table]: positions of rows, part by part
};

// Appends to sets[table] the rows of part first + `part` in an area that WriteArea wrote.
void ReadContribution(char* area, uint32_t n_parts, uint32_t part, const uint32_t* dims,
                      std::vector<std::vector<GradientSet>>* sets);

// Returns the bytes of an area for the merged rows of each table, with counts.
size_t MergedAreaBytes(const std::vector<MergedGradients>& merged, const uint32_t* dims);
// Lays out the area, and copies keys and counts. Sets rows[table] to the memory for the rows.
void WriteMergedKeys(const std::vector<MergedGradients>& merged, const uint32_t* dims, char* area,
                     std::vector<float*>* rows);
// Returns one set per table.
std::vector<GradientSet> ReadMerged(char* area, size_t n_tables, const uint32_t* dims);

}  // namespace tsps

#endif  // TFSPS_CORE_EXCHANGE_EXCHANGE_AREAS_H_
