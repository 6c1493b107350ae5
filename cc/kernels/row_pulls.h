// The pulls of rows (core/exchange/row_pull.h) of a process in one group, by operation; and what it
// knows ahead of each table (core/exchange/rows_ahead.h).
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
  // A pull, and what its ops leave to those after them.
  struct Pull {
    std::mutex mutex;  // while it is made or used
    std::unique_ptr<RowPull> pull;
    std::vector<RowsAhead::Taken> taken;       // [table]: rows that the rank had
    std::vector<std::vector<int64_t>> coming;  // [table]: keys of the next batch
    std::vector<std::vector<int64_t>> later;   // [table]: keys of batches after it
    bool flag = false;                         // of a rank of any node
  };

  // Who this process is among the ranks of its node; `folder` exists and is this run's alone.
  void Join(const std::string& folder, const NodeExchange::Options& options);
  // Runs `use` with the pull of an operation, which is made when it is first needed. One caller at
  // a time for each operation. FailedPrecondition before Join.
  Status With(const std::string& operation, uint32_t nodes, uint32_t node,
              const std::function<Status(Pull&)>& use);
  void Close();

  // --- Looking ahead. ---
  // Of the table with this number.
  RowsAhead& ahead(int table);
  // Whether this rank knows of batches that no step has come to.
  bool Announced();
  // Whether a rank of the job does: in the last look-up.
  void Agree(bool announced) { agreed_.store(announced); }
  // The same, as of the end of the last step: it stays for all look-ups between two steps.
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
