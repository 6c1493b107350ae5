// Overlay: the state before an unfinished mutation, seen through its undo log. For readers that
// find the writer dead, or its mutation sealed: they cannot roll back, but they can look past what
// is written.
#ifndef TFSPS_CORE_GROUP_OVERLAY_H_
#define TFSPS_CORE_GROUP_OVERLAY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/group/layout.h"
#include "core/group/undo_log.h"
#include "core/table/planes.h"

namespace tsps {

class Overlay {
 public:
  explicit Overlay(std::string path) : path_(std::move(path)) {}

  // A segment before its split or compaction.
  struct Before {
    const Segment* image;
    uint64_t hash;  // of a key that belongs there
    uint32_t local_depth;
  };

  // Of the mutation that follows `state`. The log's mapping must outlive the overlay.
  static Result<std::unique_ptr<Overlay>> Build(const UndoLog& log, const State& state);

  bool Inserted(int table, int64_t key) const { return Part(table).inserted.count(key) != 0; }
  // Entry (segment, position) was live with this row + 1 before the mutation erased it; 0: not
  // erased by it.
  uint32_t ErasedRow(int table, uint32_t segment, uint32_t entry) const;
  // The segment as it was, or null.
  const Segment* SegmentImage(int table, uint32_t segment) const;
  // By segment number.
  const std::unordered_map<uint32_t, Before>& segments(int table) const {
    return Part(table).segments;
  }
  // --- Everything that the mutation does to a table's rows. ---
  void ForEachRow(int table, const std::function<void(uint32_t row)>& visit) const;
  void ForEachInserted(int table, const std::function<void(int64_t key)>& visit) const;
  void ForEachErased(int table, const std::function<void(uint32_t row)>& visit) const;
  size_t n_changes(int table) const {
    return Part(table).rows.size() + Part(table).inserted.size() + Part(table).erased.size();
  }
  // DataLoss unless its images of rows are those of a table with these planes.
  Status CheckPlanes(int table, const PlaneList& list) const;
  // The before-image of a row in a plane of the table's list, or null.
  const char* RowImage(int table, size_t plane, uint32_t row, const PlaneList& list) const;

 private:
  struct Rows {  // a record of them
    UndoRecordHeader header;
    const char* payload;
  };
  struct RowPosition {
    const Rows* record;
    size_t i;
  };
  struct TablePart {
    std::unordered_set<int64_t> inserted;
    std::unordered_map<uint64_t, uint32_t> erased;  // segment << 32 | entry -> row + 1
    std::unordered_map<uint32_t, Before> segments;
    std::unordered_map<uint32_t, RowPosition> rows;
  };
  const TablePart& Part(int table) const { return tables_[static_cast<size_t>(table)]; }
  const std::string path_;  // of the undo log
  std::vector<TablePart> tables_;
  std::deque<Rows> rows_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_OVERLAY_H_
