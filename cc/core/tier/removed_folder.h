// The error for records that cannot be read because their folder was removed.
#ifndef TFSPS_CORE_TIER_REMOVED_FOLDER_H_
#define TFSPS_CORE_TIER_REMOVED_FOLDER_H_

#include <string>

#include "core/base/status.h"

namespace tsps {

// Returns NotFound, with the remedy, if the folder of a log was removed while it is in use; else
// returns `otherwise`. Call it when records cannot be read.
Status RemovedFolderOr(const std::string& folder, Status otherwise);

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_REMOVED_FOLDER_H_
