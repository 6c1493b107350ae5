// The log of erased keys of a table: which keys it lost in which change generation. Increments need
// it (Scan::ChangedSince). Only the writer calls these.
//
// The log is bounded (TableFiles::MaxErased). When it is full, its older half is dropped, and
// TableState::complete_since says which generations it still covers.
#ifndef TFSPS_CORE_GROUP_ERASED_LOG_H_
#define TFSPS_CORE_GROUP_ERASED_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/group/group_impl.h"

namespace tsps {

// Makes space for n keys in the log of the table at `place`, in mutations of its own.
Status TrimErased(Group::Impl& group, GroupWriter::Impl& writer, int place, size_t n);

// Adds keys to the log, after those of the committed state. If there is no space for them even
// after TrimErased, `state` gets an empty log. Old entries are only overwritten by later keys, when
// no state has them any more.
Status LogErased(TableFiles& files, StorageReserver& reserver, const std::vector<int64_t>& erased,
                 uint32_t generation, TableState* state);

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_ERASED_LOG_H_
