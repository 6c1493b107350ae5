// Numbers of a table that cannot be, found before they lead anywhere. DataLoss that names the
// table. group/record_checks.h has the rest, and says who looks at what when.
#ifndef TFSPS_CORE_TABLE_TABLE_CHECKS_H_
#define TFSPS_CORE_TABLE_TABLE_CHECKS_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/layout.h"

namespace tsps {

class TableFiles;

// What a commit record says of the table in `folder`, which can have `max_rows` keys: when the
// record is read, or the table is mapped.
Status CheckNumbers(const TableState& state, uint64_t max_rows, const std::string& folder);

// Directory, heads of segments and returned rows: when a writer opens. Nobody else writes. What it
// costs: 16 bytes per segment, 4 per free row.
Status CheckIndex(const TableFiles& files, const TableState& state);

// A segment's entries: before a writer first adds to it, or erases from it. Nobody else writes.
// What it costs: 64 KiB.
Status CheckSegment(const TableFiles& files, const TableState& state, uint32_t number);
// Where the keys of a segment are that CheckSegment has found sound: before it is split, which
// would hide wrong ones. A look-up per key.
Status CheckKeyPlaces(const TableFiles& files, const TableState& state, uint32_t number);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_CHECKS_H_
