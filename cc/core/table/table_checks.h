// Checks of a table's numbers. They find impossible numbers before anything follows them. All of
// them return DataLoss that names the table. group/record_checks.h has the other checks, and lists
// when each of them runs.
#ifndef TFSPS_CORE_TABLE_TABLE_CHECKS_H_
#define TFSPS_CORE_TABLE_TABLE_CHECKS_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/table/layout.h"

namespace tsps {

class TableFiles;

// Checks the table's part of a commit record, when the record is read or the table is mapped. The
// table in `folder` can have `max_rows` keys.
Status CheckNumbers(const TableState& state, uint64_t max_rows, const std::string& folder);

// Checks the directory, the heads of segments and the free rows. A writer calls it when it opens
// the group; no other writer may be active. It reads 16 bytes per segment and 4 per free row.
Status CheckIndex(const TableFiles& files, const TableState& state);

// Checks the entries of a segment. A writer calls it before it first adds to the segment or erases
// from it. It reads 64 KiB.
Status CheckSegment(const TableFiles& files, const TableState& state, uint32_t number);
// Checks that lookups find the keys of a segment, which CheckSegment has checked before. A writer
// calls it before it splits the segment, because a split would hide misplaced keys. It makes one
// lookup per key.
Status CheckKeyPlaces(const TableFiles& files, const TableState& state, uint32_t number);

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_CHECKS_H_
