// Damage: numbers in a group's files that cannot be, found before they lead anywhere.
//
// A group's files are mapped, most of them change at every step, and have no checksums. So whoever
// follows a number that it finds there sees first that it can be one:
//
//   CheckRecord, CheckNumbers   a commit record, when it is read or a table is mapped
//   CheckUndoRecord             the undo log, before anything is undone, or seen through it
//   CheckIndex                  directory, heads of segments, returned rows: when a writer opens
//   CheckSegment                a segment's entries, before a writer first adds to it or erases
//   CheckKeys                   its keys, before it is split, which would hide wrong ones
//   ProbeRows (group_impl.h)    a key's segment and row, at every probe
//
// All return DataLoss that names the file or the table. Verify (verify.cc) looks at everything else
// that has to be consistent. docs/storage.md lists what nobody can notice.
#ifndef TFSPS_CORE_DAMAGE_H_
#define TFSPS_CORE_DAMAGE_H_

#include <cstdint>
#include <string>

#include "core/control_file.h"
#include "core/layout.h"
#include "core/status.h"
#include "core/table_files.h"
#include "core/undo_log.h"

namespace tsps {

// A copy of the commit record of `epoch` in the control file `path`.
Status CheckRecord(const State& state, uint64_t epoch, const std::string& path);

// What a commit record says of the table in `folder`, which can have `max_rows` keys.
Status CheckNumbers(const TableState& state, uint64_t max_rows, const std::string& folder);

// One record of an undo log at `path`, against the state that it leads back to.
Status CheckUndoRecord(const UndoRecordHeader& record, const char* payload, const State& state,
                       const std::string& path);

// Nobody else writes. What it costs: 16 bytes per segment, 4 per free row.
Status CheckIndex(const TableFiles& files, const TableState& state);

// Nobody else writes. What it costs: 64 KiB.
Status CheckSegment(const TableFiles& files, const TableState& state, uint32_t number);
// The same, of a segment that CheckSegment has found sound; and a look-up per key.
Status CheckKeys(const TableFiles& files, const TableState& state, uint32_t number);

}  // namespace tsps

#endif  // TFSPS_CORE_DAMAGE_H_
