// VisitRows: the live keys of a table in a ReadView, with their row numbers.
#ifndef TFSPS_TESTS_READ_VIEW_ROWS_H_
#define TFSPS_TESTS_READ_VIEW_ROWS_H_

#include <cstdint>

#include "core/base/fault_point.h"
#include "core/group/index_view.h"
#include "core/group/probe.h"
#include "core/group/read_view.h"
#include "core/group/table_number.h"
#include "core/table/index.h"

namespace tsps {

// Reads what the library has no other use for.
struct ReadViewForTests {
  // Calls visit(key, row) for every live key, in the index's order.
  template <typename Visit>
  static void VisitRows(const ReadView& view, int table, const Visit& visit) {
    if (!view.Mapped(table)) return;
    const TableFiles& files = view.Files(table);
    const TableState& state = view.StateOf(table);
    const IndexView index(files, state, view.overlay_, static_cast<int>(PlaceOf(table)));
    for (uint32_t number = 0; number < state.segments; ++number) {
      for (uint32_t at = 0; at < kSegmentEntries; ++at) {
        const uint32_t row_plus_one = index.RowPlusOne(number, at);
        if (row_plus_one == 0 || row_plus_one == kTombstone) continue;
        const int64_t key = index.Key(number, at);
        if (row_plus_one <= state.rows) {
          visit(key, row_plus_one - 1);
        } else if (!TSPS_FAULT_OFF("seqlock")) {
          view.Fail(Astray(files, key));
        }
      }
    }
  }
};

template <typename Visit>
void VisitRows(const ReadView& view, int table, const Visit& visit) {
  ReadViewForTests::VisitRows(view, table, visit);
}

}  // namespace tsps

#endif  // TFSPS_TESTS_READ_VIEW_ROWS_H_
