// RowPulls: the pulls of rows (core/exchange/row_pull.h) of this process in one group, by
// operation, and the announced batches of each table (core/exchange/rows_ahead.h).
#ifndef TFSPS_KERNELS_ROW_PULLS_H_
#define TFSPS_KERNELS_ROW_PULLS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/exchange/node_exchange.h"
#include "core/exchange/row_pull.h"
#include "core/exchange/rows_ahead.h"

namespace tsps {

// Thread-safe.
class RowPulls {
 public:
  // A pull, and the state that its ops pass on to later ops.
  struct Pull {
    std::mutex mutex;  // locked while the pull is created or in use
    std::unique_ptr<RowPull> pull;
    std::vector<RowsAhead::Taken> taken;       // [table]: rows that the rank had
    std::vector<std::vector<int64_t>> coming;  // [table]: keys of the next batch
    std::vector<std::vector<int64_t>> later;   // [table]: keys of batches after it
    bool flag = false;                         // whether a rank of any node has set its flag
  };

  // Sets the place of this process among the ranks of its node. `folder` must exist, and belong to
  // this run only.
  void Join(const std::string& folder, const NodeExchange::Options& options);
  // Runs `use` with the pull of an operation, and creates the pull at the first call. One caller at
  // a time for each operation. FailedPrecondition: Join was not called.
  Status With(const std::string& operation, uint32_t nodes, uint32_t node,
              const std::function<Status(Pull&)>& use);
  void Close();

  // --- Looking ahead. ---
  // Returns the announced batches of the table with this number.
  RowsAhead& ahead(int table);
  // Returns whether this rank knows batches that no step has reached.
  bool Announced();
  // Records whether a rank of the job knew such batches at the last lookup.
  void Agree(bool announced) { agreed_.store(announced); }
  // Returns the recorded value at the end of the last step, which is the same for all lookups
  // between two steps.
  bool looking() const { return looking_.load(); }
  void StepMade() { looking_.store(agreed_.load()); }
  RowsAhead::Counters counters();

 private:
  std::mutex mutex_;
  std::string folder_;  // empty before Join, and after Close
  NodeExchange::Options options_;
  std::map<std::string, std::shared_ptr<Pull>> pulls_;
  std::map<int, std::unique_ptr<RowsAhead>> ahead_;
  std::atomic<bool> agreed_{false}, looking_{false};
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_ROW_PULLS_H_
