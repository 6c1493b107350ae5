#include "core/base/status.h"

#include <cerrno>
#include <system_error>

namespace tsps {
namespace {

Code CodeOfErrno(int error) {
  switch (error) {
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return Code::kResourceExhausted;
    case ENOENT:
      return Code::kNotFound;
    case EEXIST:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
    case ELOOP:  // open(O_NOFOLLOW) of a symlink
    case EROFS:
      return Code::kPermissionDenied;
    case EINVAL:
    case ENAMETOOLONG:
      return Code::kInvalidArgument;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case ENXIO:
    case ENODEV:
      return Code::kFailedPrecondition;
    case EIO:
      return Code::kDataLoss;
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ETXTBSY:
      return Code::kUnavailable;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Status OtherFormat(const std::string& path, const std::string& actual,
                   const std::string& supported) {
  return Error(Code::kDataLoss, path, " has ", actual, ". This version of tf_sparse_ps reads ",
               supported,
               " and converts no other. Start a new group, and restore a checkpoint or load "
               "sparse-parameter files into it. If there are none, open the tables with the "
               "version of tf_sparse_ps that wrote them, and save each with Table.save");
}

Status FirstError(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return Status();
}

Status ErrnoError(const std::string& what, const std::string& path) {
  const int error = errno;  // read before another call can change it
  // generic_category().message() is strerror without its static buffer.
  return Error(CodeOfErrno(error), what, " ", path, ": ", std::generic_category().message(error));
}

}  // namespace tsps
