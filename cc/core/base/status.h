// Status and Result<T>: how every fallible function of the core reports failure.
//
// A Status becomes a TensorFlow error in cc/kernels/tensors.cc and a Python exception in
// cc/python/table_module.cc, and nowhere else. Messages name the thing, what was expected, what was
// received, and the path.
#ifndef TFSPS_CORE_BASE_STATUS_H_
#define TFSPS_CORE_BASE_STATUS_H_

#include <cassert>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tsps {

enum class Code {
  kOk,
  kInvalidArgument,     // the caller passed something that can never work
  kNotFound,            // no such group, table or file
  kAlreadyExists,       // create of something that is there
  kFailedPrecondition,  // valid request, wrong state (not the writer, other uuid, other optimizer)
  kOutOfRange,          // a key outside a bounded table
  kResourceExhausted,   // no room: file system, cgroup, row numbers, address range
  kDataLoss,            // a truncated, foreign or damaged file
  kPermissionDenied,    // another user's file, a symlink, an unwritable directory
  kUnavailable,         // the writer died, or is writing for too long
  kDeadlineExceeded,    // a wait ran out of time
  kAborted,             // another writer holds the group
  kInternal,            // a broken invariant: a bug
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT: implicit

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// Error(Code::kNotFound, "no table at ", path) streams its arguments into the message.
template <typename... Args>
Status Error(Code code, const Args&... args) {
  std::ostringstream message;
  (message << ... << args);
  return Status(code, message.str());
}

// DataLoss of a file or a table.
template <typename... Args>
Status Damaged(const std::string& what, const Args&... args) {
  return Error(Code::kDataLoss, what, " is damaged: ", args...);
}

// DataLoss: a file of a group, or of a group's tables, has a format that this build does not read.
// The message ends with the remedy. `found` and `read` name the two formats.
Status OtherFormat(const std::string& path, const std::string& found, const std::string& read);

// The first error of parallel work, or OK.
Status FirstError(const std::vector<Status>& statuses);

// Error of a failed system call; reads errno, which is turned into the closest Code.
Status ErrnoError(const std::string& what, const std::string& path);

}  // namespace tsps

#define TSPS_RETURN_IF_ERROR(expression)       \
  do {                                         \
    ::tsps::Status tsps_status = (expression); \
    if (!tsps_status.ok()) return tsps_status; \
  } while (false)

#define TSPS_CONCAT_INNER(a, b) a##b
#define TSPS_CONCAT(a, b) TSPS_CONCAT_INNER(a, b)
#define TSPS_ASSIGN_OR_RETURN(lhs, expression) \
  TSPS_ASSIGN_OR_RETURN_IMPL(TSPS_CONCAT(tsps_result_, __LINE__), lhs, expression)
#define TSPS_ASSIGN_OR_RETURN_IMPL(result, lhs, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return result.status();                 \
  lhs = std::move(*result)

#endif  // TFSPS_CORE_BASE_STATUS_H_
