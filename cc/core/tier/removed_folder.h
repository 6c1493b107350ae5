#ifndef TFSPS_CORE_TIER_REMOVED_FOLDER_H_
#define TFSPS_CORE_TIER_REMOVED_FOLDER_H_

#include <string>

#include "core/base/status.h"

namespace tsps {

// What to say where records cannot be read: NotFound, with the remedy, if the folder of a log was
// removed beside those who use it, else `otherwise`.
Status RemovedFolderOr(const std::string& folder, Status otherwise);

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_REMOVED_FOLDER_H_
