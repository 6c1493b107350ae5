// Damage: numbers in a group's files that cannot be, found before they lead anywhere.
//
// A group's files are mapped, most of them change at every step, and have no checksums. So whoever
// follows a number that it finds there sees first that it can be one:
//
//   CheckRecord                  a commit record, when it is read
//   CheckUndoRecord              the undo log, before anything is undone, or seen through it
//   CheckNumbers, CheckIndex, CheckSegment, CheckKeyPlaces (table/table_checks.h)
//   ProbeRows (group_impl.h)     a key's segment and row, at every probe
//
// All return DataLoss that names the file or the table. Verify (verify.cc) looks at everything else
// that has to be consistent. docs/storage.md lists what nobody can notice.
#ifndef TFSPS_CORE_GROUP_RECORD_CHECKS_H_
#define TFSPS_CORE_GROUP_RECORD_CHECKS_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/group/undo_log.h"

namespace tsps {

// A copy of the commit record of `epoch`, and the names of its tables.
Status CheckRecord(const State& state, uint64_t epoch, const ControlFile& control);

// One record of an undo log at `path`, against the state that it leads back to. What the table's
// files have to say to it is left to recovery.cc.
Status CheckUndoRecord(const UndoRecordHeader& record, const char* payload, const State& state,
                       const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_RECORD_CHECKS_H_
