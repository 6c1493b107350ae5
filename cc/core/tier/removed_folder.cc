#include "core/tier/removed_folder.h"

#include <unistd.h>

#include <cerrno>

namespace tsps {

Status RemovedFolderOr(const std::string& folder, Status otherwise) {
  if (access(folder.c_str(), F_OK) == 0 || errno != ENOENT) return otherwise;
  return Error(
      Code::kNotFound, "the folder ", folder,
      " was removed while its table is in use, and the rows in it are lost. End the job, "
      "remove the table in memory too (tf-sparse-ps clean), and start from the newest checkpoint");
}

}  // namespace tsps
