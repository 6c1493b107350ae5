#include "core/tier/removed_folder.h"

#include <unistd.h>

#include <cerrno>

namespace tsps {

Status RemovedFolderOr(const std::string& folder, Status otherwise) {
  if (access(folder.c_str(), F_OK) == 0 || errno != ENOENT) return otherwise;
  return Error(
      Code::kNotFound, "the folder ", folder,
      " was removed while its table is in use. The rows in it are lost. End the job, remove its "
      "folder in shared memory (/dev/shm or TFSPS_DIR) too, and start from the newest checkpoint");
}

}  // namespace tsps
