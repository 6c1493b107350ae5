#include "core/tier/disk_totals.h"

namespace tsps {

DiskTotals& DiskTotals::OfProcess() {
  static DiskTotals* const totals = new DiskTotals();
  return *totals;
}

}  // namespace tsps
