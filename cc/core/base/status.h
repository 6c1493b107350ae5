// Status and Result<T>: the return values of all core functions that can fail.
//
// Only cc/kernels/tensors.cc and cc/python/table_module.cc convert a Status, into a TensorFlow
// error and a Python exception. A message names what failed and its path, what was expected, and
// what was received.
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
  kInvalidArgument,     // the arguments can never work
  kNotFound,            // a group, a table or a file does not exist
  kAlreadyExists,       // the thing to create exists already
  kFailedPrecondition,  // wrong state (not the writer, another uuid, another optimizer)
  kOutOfRange,          // a key is outside a bounded table
  kResourceExhausted,   // a limit: file system, cgroup, row numbers, address range
  kDataLoss,            // a file is truncated, damaged or of another kind
  kPermissionDenied,    // another user's file, a symbolic link, a read-only directory
  kUnavailable,         // the writer died, or writes for too long
  kDeadlineExceeded,    // a wait timed out
  kAborted,             // another writer has the group
  kInternal,            // a broken invariant, which is a bug
};

// The outcome of an operation: OK, or a code and a message.
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

// A value, or the error for which there is none. Do not read the value of a result that is not
// ok().
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

// Returns an error. Error(Code::kNotFound, "no table at ", path) joins its arguments to the
// message.
template <typename... Args>
Status Error(Code code, const Args&... args) {
  std::ostringstream message;
  (message << ... << args);
  return Status(code, message.str());
}

// Returns DataLoss: the file or table `what` is damaged. The other arguments describe the damage.
template <typename... Args>
Status Damaged(const std::string& what, const Args&... args) {
  return Error(Code::kDataLoss, what, " is damaged: ", args...);
}

// Returns DataLoss: the file of a group, or of its tables, has the format `actual`, and this build
// reads the format `supported` only. The message ends with the remedy.
Status OtherFormat(const std::string& path, const std::string& actual,
                   const std::string& supported);

// Returns the first error, or OK. For statuses of parallel work.
Status FirstError(const std::vector<Status>& statuses);

// Returns the error of a failed system call, with the Code closest to errno. `what` begins the
// message, as in "cannot open"; the path follows.
Status ErrnoError(const std::string& what, const std::string& path);

}  // namespace tsps

// Returns from the calling function if the expression is a Status with an error.
#define TSPS_RETURN_IF_ERROR(expression)       \
  do {                                         \
    ::tsps::Status tsps_status = (expression); \
    if (!tsps_status.ok()) return tsps_status; \
  } while (false)

#define TSPS_CONCAT_INNER(a, b) a##b
#define TSPS_CONCAT(a, b) TSPS_CONCAT_INNER(a, b)
// Assigns the value of a Result, or returns its error from the calling function.
#define TSPS_ASSIGN_OR_RETURN(lhs, expression) \
  TSPS_ASSIGN_OR_RETURN_IMPL(TSPS_CONCAT(tsps_result_, __LINE__), lhs, expression)
#define TSPS_ASSIGN_OR_RETURN_IMPL(result, lhs, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return result.status();                 \
  lhs = std::move(*result)

#endif  // TFSPS_CORE_BASE_STATUS_H_
