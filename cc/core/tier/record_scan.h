// RecordScan: the rows that one committed state has in a record store, for as long as it takes,
// beside the writer.
//
// Which records those are follows from their places and the index. A record behind the state's last
// one is a later state's. Of the others those are the state's whose entries are in the index, or
// have been taken away since: the writer tells a scan which (Left), and keeps the files meanwhile.
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

// Not thread-safe. The store must stay.
class RecordScan {
 public:
  // Of the last committed state, of which `committed` is the number of its moves; null: there is a
  // newer one. `refresh` calls Left with what the writer has told so far.
  static Result<std::unique_ptr<RecordScan>> Begin(RecordStore& store, uint32_t committed,
                                                   std::function<Status()> refresh);

  // Rows that the state has here.
  uint64_t rows() const { return state_.rows; }
  void Left(const RecordMove* moves, size_t n);
  // The same of moves that are declared, and have this number, if there are any.
  void LeftDeclared(uint32_t number);

  // The next rows in the order of the log, from where the last call ended: calls
  // visit(key, payload). False: there are no more. DataLoss, if some are missing then.
  using VisitRow = std::function<void(int64_t key, const char* payload)>;
  Result<bool> Next(const VisitRow& visit);
  // Calls visit(i, payload), on many threads, for those of the keys that have a row here.
  Status Find(const int64_t* keys, size_t n, const RecordStore::Visit& visit);

 private:
  RecordScan(RecordStore& store, std::function<Status()> refresh)
      : store_(store), refresh_(std::move(refresh)) {}
  bool OfState(uint32_t place) const;
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
  std::vector<uint32_t> files_;
  size_t file_ = 0;  // the next one, among them
  uint32_t slot_ = 0;
  uint64_t visited_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_SCAN_H_
