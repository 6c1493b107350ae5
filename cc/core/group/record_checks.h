// Checks of a group's files. They find impossible numbers before anything follows them.
//
// The files are mapped, most of them change at every step, and they have no checksums. So code
// checks a number from a file before it follows it:
//
//   CheckRecord                  a commit record, when it is read
//   CheckUndoRecord              the undo log, before anything is undone or read through it
//   CheckNumbers, CheckIndex, CheckSegment, CheckKeyPlaces (table/table_checks.h)
//   ProbeRows (probe.h)          a key's segment and row, at every probe
//
// All of them return DataLoss that names the file or the table. Verify (verify.cc) checks
// everything else that must be consistent. docs/storage.md lists the damage that cannot be
// detected.
#ifndef TFSPS_CORE_GROUP_RECORD_CHECKS_H_
#define TFSPS_CORE_GROUP_RECORD_CHECKS_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/group/undo_log.h"

namespace tsps {

// Checks a copy of the commit record of `epoch`, and the names of its tables.
Status CheckRecord(const State& state, uint64_t epoch, const ControlFile& control);

// Checks one record of the undo log at `path` against the state that it leads back to. recovery.cc
// checks it against the table's files.
Status CheckUndoRecord(const UndoRecordHeader& record, const char* payload, const State& state,
                       const std::string& path);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_RECORD_CHECKS_H_
