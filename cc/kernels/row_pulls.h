// The pulls of rows (core/exchange/row_pull.h) of a process in one group, by operation.
#ifndef TFSPS_KERNELS_ROW_PULLS_H_
#define TFSPS_KERNELS_ROW_PULLS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/status.h"
#include "core/exchange/node_exchange.h"
#include "core/exchange/row_pull.h"

namespace tsps {

// Thread-safe.
class RowPulls {
 public:
  // Who this process is among the ranks of its node; `folder` exists and is this run's alone.
  void Join(const std::string& folder, const NodeExchange::Options& options);
  // Runs `use` with the pull of an operation, which is made when it is first needed. One caller at
  // a time for each operation. FailedPrecondition before Join.
  Status With(const std::string& operation, uint32_t nodes, uint32_t node,
              const std::function<Status(RowPull&)>& use);
  void Close();

 private:
  struct Pull {
    std::mutex mutex;  // while it is made or used
    std::unique_ptr<RowPull> pull;
  };

  std::mutex mutex_;
  std::string folder_;  // empty before Join, and after Close
  NodeExchange::Options options_;
  std::map<std::string, std::shared_ptr<Pull>> pulls_;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_ROW_PULLS_H_
