// Overlay: the state before an unfinished mutation, as its undo log describes it. It serves readers
// that find the writer dead, or its mutation sealed. They cannot roll back, but they can ignore
// what the mutation wrote.
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

// Immutable after Build, so thread-safe.
class Overlay {
 public:
  explicit Overlay(std::string path) : path_(std::move(path)) {}

  // A segment before its split or compaction.
  struct Before {
    const Segment* image;
    uint64_t hash;  // of a key that belongs to the segment
    uint32_t local_depth;
  };

  // Builds the overlay of the mutation that follows `state`. The log's mapping must outlive it.
  // DataLoss: the log is damaged.
  static Result<std::unique_ptr<Overlay>> Build(const UndoLog& log, const State& state);

  // Returns whether the mutation inserted the key.
  bool Inserted(int table, int64_t key) const { return Part(table).inserted.count(key) != 0; }
  // Returns the row + 1 that the entry had before the mutation erased it; 0 if the mutation did
  // not.
  uint32_t ErasedRow(int table, uint32_t segment, uint32_t entry) const;
  // Returns the segment as it was before the mutation, or null if the mutation did not rebuild it.
  const Segment* SegmentImage(int table, uint32_t segment) const;
  // Returns all rebuilt segments, by number.
  const std::unordered_map<uint32_t, Before>& segments(int table) const {
    return Part(table).segments;
  }
  // --- All changes of the mutation to a table's rows. ---
  void ForEachRow(int table, const std::function<void(uint32_t row)>& visit) const;
  void ForEachInserted(int table, const std::function<void(int64_t key)>& visit) const;
  void ForEachErased(int table, const std::function<void(uint32_t row)>& visit) const;
  size_t n_changes(int table) const {
    return Part(table).rows.size() + Part(table).inserted.size() + Part(table).erased.size();
  }
  // Returns DataLoss unless the overlay's images of rows fit a table with these planes.
  Status CheckPlanes(int table, const PlaneList& list) const;
  // Returns the before-image of a row in a plane of the table's list, or null if there is none.
  const char* RowImage(int table, size_t plane, uint32_t row, const PlaneList& list) const;

 private:
  struct Rows {  // an undo record of rows
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
