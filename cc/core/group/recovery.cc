#include <cstring>
#include <string>
#include <vector>

#include "core/base/fault_point.h"
#include "core/group/group_impl.h"
#include "core/group/probe.h"
#include "core/group/record_checks.h"
#include "core/group/table_number.h"
#include "core/table/index.h"

namespace tsps {
namespace {

constexpr size_t kUndoAhead = 16;  // keys

void UndoRows(const PlaneList& list, const UndoRecordHeader& record, const char* payload) {
  if (TSPS_FAULT_OFF("sketch.undo") && list.planes.back().row_bytes == sizeof(SketchLine)) return;
  const auto* rows = reinterpret_cast<const uint32_t*>(payload);
  for (size_t block = 0; block < UndoBlocks(record.n); ++block, rows += kUndoBlock) {
    if (!HasUndoBlock(record, payload, block)) continue;
    const size_t n = UndoBlockRows(record.n, block);
    const char* image = payload + UndoBlockOffset(record.n, record.row_bytes, block);
    for (size_t p = 0; p < record.planes; ++p) {
      const Plane& plane = list.planes[p];
      for (size_t i = 0; i < n; ++i, image += plane.row_bytes) {
        std::memcpy(plane.row(rows[i]), image, plane.row_bytes);
        TSPS_FAULT_POINT("recovery.row");
      }
    }
  }
}

// Undoes inserts in reverse order, as RemoveInsert requires, also when a killed recovery starts
// again.
void UndoInserts(TableFiles& files, const TableState& table, const UndoRecordHeader& record,
                 const char* payload, bool killed) {
  const PlaneList& list = *files.Planes(table);
  const auto* keys = reinterpret_cast<const int64_t*>(payload);
  const auto segment_of = [&](uint64_t hash) {
    return files.directory_entries()[DirectoryPosition(hash, table.depth)];
  };
  // A kill may have come between writing an entry and counting it.
  std::vector<bool> recounted(killed ? table.segments : 0);
  for (size_t i = record.n; i-- > 0;) {
    if (i >= kUndoAhead) PrefetchEntry(files, table, keys[i - kUndoAhead]);
    const uint64_t hash = HashKey(keys[i], table.index_seed);
    Segment* const segment = files.segment(segment_of(hash));
    Entry* const entry = FindInSegment(segment, keys[i], hash);
    if (entry == nullptr) continue;  // it was never written, or is undone already
    // The row is freed first: once the entry is removed, nothing leads to the row.
    if (entry->row_plus_one <= table.rows) {
      StoreRelaxed(list.changed_generations()[entry->row_plus_one - 1], kFreeRow);
    }
    RemoveInsert(segment, entry);
    TSPS_FAULT_POINT("recovery.insert");
  }
  for (size_t i = 0; killed && i < record.n; ++i) {
    const uint32_t number = segment_of(HashKey(keys[i], table.index_seed));
    if (recounted[number]) continue;
    recounted[number] = true;
    RecountUsed(files.segment(number));
    TSPS_FAULT_POINT("recovery.recount");
  }
}

// The generations in which the rows were written are lost; the group's current one takes their
// place.
void UndoErases(TableFiles& files, const TableState& table, uint32_t changes,
                const UndoRecordHeader& record, const char* payload) {
  const PlaneList& list = *files.Planes(table);
  const auto* erased = reinterpret_cast<const ErasedEntry*>(payload);
  for (size_t i = 0; i < record.n; ++i) {
    StoreRelaxed(files.segment(erased[i].segment)->entries[erased[i].entry].row_plus_one,
                 erased[i].row_plus_one);
    StoreRelaxed(list.changed_generations()[erased[i].row_plus_one - 1], changes);
  }
}

// Restores a segment, and lets its whole directory range lead to it again.
void UndoSegment(const TableFiles& files, uint32_t depth, const UndoRecordHeader& record,
                 const char* payload) {
  Segment* segment = files.segment(record.segment);
  const auto* image = reinterpret_cast<const Segment*>(payload);
  std::memcpy(segment, image, kSegmentBytes);
  TSPS_FAULT_POINT("recovery.segment");
  const size_t width = size_t{1} << (depth - image->local_depth);
  const size_t prefix = image->local_depth == 0 ? 0 : record.hash >> (64 - image->local_depth);
  uint32_t* entries = files.directory_entries() + (size_t{1} << depth) + prefix * width;
  for (size_t i = 0; i < width; ++i) StoreRelaxed(entries[i], record.segment);
}

void UndoFreeRows(TableFiles& files, const UndoRecordHeader& record, const char* payload) {
  const auto* rows = reinterpret_cast<const uint32_t*>(payload);
  for (size_t i = 0; i < record.n; ++i) StoreRelaxed(files.free_stack()[record.hash + i], rows[i]);
}

void Undo(TableFiles& files, const TableState& table, uint32_t changes,
          const UndoRecordHeader& record, const char* payload, bool killed) {
  switch (record.kind) {
    case UndoKind::kRows:
      return UndoRows(*files.Planes(table), record, payload);
    case UndoKind::kInserts:
      return UndoInserts(files, table, record, payload, killed);
    case UndoKind::kErases:
      return UndoErases(files, table, changes, record, payload);
    case UndoKind::kFreeRows:
      return UndoFreeRows(files, record, payload);
    case UndoKind::kSegment:
      return UndoSegment(files, table.depth, record, payload);
  }
}

// Checks that all keys of the image belong where the record's hash leads, as before the split.
Status CheckImageKeys(const TableState& table, const UndoRecordHeader& record, const Segment& image,
                      const std::string& path) {
  if (image.local_depth == 0) return Status();
  for (const Entry& entry : image.entries) {
    if (entry.row_plus_one == 0 || entry.row_plus_one == kTombstone) continue;
    if ((HashKey(entry.key, table.index_seed) ^ record.hash) >> (64 - image.local_depth) == 0)
      continue;
    return Damaged(path, "an image of segment ", record.segment, " with key ", entry.key,
                   ", which does not belong there");
  }
  return Status();
}

// Makes the checks of CheckUndoRecord, and those that need the table's files.
Status CheckRecordOf(const Group::Impl& impl, const UndoRecordHeader& record, const char* payload,
                     const State& state) {
  TSPS_RETURN_IF_ERROR(CheckUndoRecord(record, payload, state, impl.undo->path()));
  if (TSPS_FAULT_OFF("damage")) return Status();
  TableFiles& files = *impl.files(static_cast<int>(record.table));
  const TableState& table = state.tables[record.table];
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(table));
  if (record.kind == UndoKind::kRows) return CheckPlanesOf(record, *list, impl.undo->path());
  if (record.kind == UndoKind::kSegment) {
    return CheckImageKeys(table, record, *reinterpret_cast<const Segment*>(payload),
                          impl.undo->path());
  }
  const auto* const keys = reinterpret_cast<const int64_t*>(payload);
  for (size_t i = 0; record.kind == UndoKind::kInserts && i < record.n; ++i) {
    const uint64_t hash = HashKey(keys[i], table.index_seed);
    const uint32_t number = files.directory_entries()[DirectoryPosition(hash, table.depth)];
    if (number >= table.segments) return Astray(files, keys[i]);
  }
  return Status();
}

}  // namespace

Status UndoMutation(Group::Impl& impl, State* state, bool killed) {
  ControlFile& control = *impl.control;
  if (!TSPS_FAULT_OFF("undo")) {
    if (control.live().undo_epoch.load() != state->epoch + 1) {
      return Error(Code::kDataLoss, control.path(),
                   " is damaged: a mutation began without an undo log");
    }
    // The whole log is checked before any of it is undone. If it cannot be undone, nothing is
    // changed.
    const auto check = [&](const UndoRecordHeader& record, const char* payload) {
      return CheckRecordOf(impl, record, payload, *state);
    };
    TSPS_RETURN_IF_ERROR(impl.undo->Check(state->epoch + 1));
    TSPS_RETURN_IF_ERROR(impl.undo->ForEach(state->epoch + 1, check));
    control.Unseal();
    const auto undo = [&](const UndoRecordHeader& record, const char* payload) {
      const TableState& table = state->tables[record.table];
      Undo(*impl.files(static_cast<int>(record.table)), table, state->changes, record, payload,
           killed);
      return Status();
    };
    TSPS_RETURN_IF_ERROR(impl.undo->ForEach(state->epoch + 1, undo));
  }
  // The same state gets a new epoch, so that a reader that began before the mutation does not
  // accept what it read in between.
  ++state->epoch;
  control.Publish(*state);
  control.EndRebuild();
  return Status();
}

Status Recover(Group::Impl& impl, Undecided outcome, State* state) {
  ControlFile& control = *impl.control;
  const uint64_t sequence = control.sequence();
  control.LoadState(sequence / 2, state);
  TSPS_RETURN_IF_ERROR(CheckRecord(*state, sequence / 2, control));
  if ((sequence & 1) == 0) {
    control.EndRebuild();  // ends the rebuild of a published mutation
    return Status();
  }
  const auto undo = [&] { return UndoMutation(impl, state, /*killed=*/true); };
  if (outcome == Undecided::kUndo) return undo();
  TSPS_ASSIGN_OR_RETURN(const std::optional<Sealed> sealed, control.SealedAfter(state->epoch));
  // A mutation without a seal may be incomplete, and nobody else decides about it. The group may
  // also have published the sealed step and begun this one since.
  if (!sealed.has_value()) return undo();
  // A group without peers knows that it has not published the step.
  if (outcome == Undecided::kRefuse && sealed->peers <= 1) return undo();
  if (outcome == Undecided::kRefuse) {
    return Error(Code::kFailedPrecondition, "step ", sealed->step, " of ", control.path(),
                 " is written, but not decided: ", sealed->peers, " groups of run ", sealed->run_id,
                 " decide it together. It is committed if one of them has committed it, and undone "
                 "if none has");
  }
  State next;
  control.LoadState(state->epoch + 1, &next);
  TSPS_RETURN_IF_ERROR(CheckRecord(next, state->epoch + 1, control));
  for (size_t place = 0; place < next.tables.size(); ++place) {
    if (IsVacant(next.tables[place])) continue;
    if (impl.files(static_cast<int>(place)) == nullptr) {
      return Damaged(control.path(), "its sealed record has a table that does not exist");
    }
    TSPS_RETURN_IF_ERROR(impl.files(static_cast<int>(place))->CheckState(next.tables[place]));
  }
  control.Publish(next);
  *state = std::move(next);
  return Status();
}

}  // namespace tsps
