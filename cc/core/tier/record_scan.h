// RecordScan: reads all rows that one committed state has in a record store, while the writer
// continues.
//
// The state knows the last row that was appended for it. Later ones, by the sequence numbers of
// files and by slots, belong to later states. An earlier row, or a copy, belongs to the state if
// its entry is in the index, or was removed since the state was committed. The writer reports these
// removals to the scan (Left). While a scan runs, the writer neither removes files nor puts copies
// into the index.
#ifndef TFSPS_CORE_TIER_RECORD_SCAN_H_
#define TFSPS_CORE_TIER_RECORD_SCAN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/tier/record_store.h"

namespace tsps {

// Not thread-safe. The store must outlive the scan.
class RecordScan {
 public:
  // Begins a scan of the last committed state, whose moves have the number `committed`. Null: a
  // newer state was committed. `refresh` must call Left with all removals that the writer has
  // reported so far.
  static Result<std::unique_ptr<RecordScan>> Begin(RecordStore& store, uint32_t committed,
                                                   std::function<Status()> refresh);

  // Returns the number of rows that the state has in the store.
  uint64_t rows() const { return state_.rows; }
  // Takes note of entries that the writer removed from the index.
  void Left(const RecordMove* moves, size_t n);
  // Takes note of the declared moves with this number, if there are any.
  void LeftDeclared(uint32_t number);

  // Calls visit(key, payload) for the next rows in the order of the log. Returns false after the
  // last row. DataLoss: rows are missing at the end.
  using VisitRow = std::function<void(int64_t key, const char* payload)>;
  Result<bool> Next(const VisitRow& visit);
  // Calls visit(i, payload), on many threads, for each key that has a row in the store.
  Status Find(const int64_t* keys, size_t n, const RecordStore::Visit& visit);

 private:
  RecordScan(RecordStore& store, std::function<Status()> refresh)
      : store_(store), refresh_(std::move(refresh)) {}
  // Returns the number of slots of a file that may belong to the state, from the first one on.
  Result<uint32_t> SlotsOfState(uint32_t file);
  Result<bool> OfState(uint32_t place);
  struct Row {
    uint32_t place;
    int64_t key;
    const char* payload;
  };

  RecordStore& store_;
  const std::function<Status()> refresh_;
  RecordState state_ = {};
  std::unordered_set<uint32_t> entered_;  // places of rows that are in memory
  std::unordered_multimap<uint64_t, uint32_t> left_by_tag_;
  std::unordered_set<uint32_t> left_;
  std::unordered_map<uint32_t, uint32_t> slots_of_state_;  // of the files that were looked at
  std::vector<uint32_t> files_;
  size_t file_ = 0;  // the position of the next file in files_
  uint32_t slot_ = 0;
  uint64_t visited_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_SCAN_H_
