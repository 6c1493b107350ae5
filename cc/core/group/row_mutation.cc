#include "core/group/row_mutation.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/base/fault_point.h"
#include "core/gradients/dedupe.h"
#include "core/group/probe.h"
#include "core/table/index.h"

namespace tsps {
namespace {

constexpr size_t kProbeGrain = 4096;
constexpr size_t kRowGrain = 512;

Status Repeated(const TableFiles& files, int64_t key) {
  return Error(Code::kInvalidArgument, "table ", files.folder(), ": key ", key,
               " is there twice; the keys of an update must be unique");
}

}  // namespace

RowPlanes::RowPlanes(const PlaneList& planes, size_t n_planes, uint32_t generation)
    : list(planes),
      n(static_cast<int>(n_planes)),
      keys(planes.keys()),
      changed(planes.changed_generations()),
      changes(generation) {
  for (int p = 0; p < n; ++p) {
    base[p] = list.planes[static_cast<size_t>(p)].file->data();
    bytes[p] = list.planes[static_cast<size_t>(p)].row_bytes;
  }
}

void RowMutation::Add(int table, const int64_t* keys, size_t n, bool unique, size_t planes) {
  RowPlan plan;
  plan.table = table;
  plan.keys = keys;
  plan.n = n;
  plan.unique = unique;
  plan.planes = planes;
  plans_.push_back(std::move(plan));
}

void RowMutation::ForEachPlan(const std::function<void(size_t p)>& body) {
  std::vector<size_t> sizes;
  for (const RowPlan& plan : plans_) sizes.push_back(plan.n);
  ForEachItem(sizes, executor_, body);
}

int64_t RowMarks::FirstRepeated(const std::vector<uint32_t>& rows,
                                const std::vector<uint32_t>& positions, uint64_t n_rows) {
  if (marks_.size() < n_rows / 64 + 1) marks_.resize(n_rows / 64 + 1 + n_rows / 256);
  size_t marked = 0;
  bool repeated = false;
  for (; marked < positions.size(); ++marked) {
    const uint32_t row = rows[positions[marked]];
    const uint64_t mark = uint64_t{1} << (row & 63);
    repeated = (marks_[row >> 6] & mark) != 0;
    if (repeated) break;
    marks_[row >> 6] |= mark;
  }
  for (size_t i = 0; i < marked; ++i) marks_[rows[positions[i]] >> 6] = 0;
  return repeated ? int64_t{positions[marked]} : -1;
}

Status RowMutation::Plan(const std::function<void(size_t p)>& also) {
  std::vector<Status> statuses(plans_.size());
  ForEachPlan([&](size_t p) {
    if (also) also(p);
    statuses[p] = PlanTable(plans_[p]);
  });
  return FirstError(statuses);
}

Status RowMutation::PlanTable(RowPlan& plan) {
  plan.rows.resize(plan.n);
  const TableFiles& files = *group_.files(plan.table);
  const TableState& state = StateOf(plan);
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, group_.files(plan.table)->BoundPlanes(state));
  plan.planes = std::max(plan.planes, list->trained());
  std::atomic<int64_t> astray{-1};
  executor_.ParallelFor(plan.n, kProbeGrain, [&](size_t begin, size_t end) {
    const int64_t one =
        ProbeRows(files, state, plan.keys + begin, end - begin, plan.rows.data() + begin);
    if (one >= 0) astray.store(static_cast<int64_t>(begin) + one, std::memory_order_relaxed);
  });
  if (astray.load() >= 0) return Astray(files, plan.keys[astray.load()]);
  plan.existing.reserve(plan.n);
  for (size_t i = 0; i < plan.n; ++i) {
    auto& positions = plan.rows[i] == kAbsentRow ? plan.fresh : plan.existing;
    positions.push_back(static_cast<uint32_t>(i));
  }
  const int64_t repeated = writer_.memory[static_cast<size_t>(plan.table)].marks.FirstRepeated(
      plan.rows, plan.existing, state.rows);
  if (repeated < 0) return CheckFreshUnique(plan);
  const uint32_t row = plan.rows[static_cast<size_t>(repeated)];
  const auto first = std::find(plan.rows.begin(), plan.rows.end(), row) - plan.rows.begin();
  if (plan.keys[first] == plan.keys[repeated]) return Repeated(files, plan.keys[repeated]);
  return Error(Code::kDataLoss, "table ", files.folder(), " is damaged: keys ", plan.keys[first],
               " and ", plan.keys[repeated], " both have row ", row);
}

Status RowMutation::CheckFreshUnique(const RowPlan& plan) const {
  const size_t n = plan.fresh.size();
  if (n == 0 || plan.unique) return Status();
  std::vector<int64_t> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = plan.keys[plan.fresh[i]];
  std::vector<int32_t> numbers(n);
  if (Dedupe({{keys.data(), n, numbers.data()}}).size() == n) return Status();
  size_t repeated = 0;
  while (numbers[repeated] == static_cast<int32_t>(repeated)) ++repeated;
  return Repeated(*group_.files(plan.table), keys[repeated]);
}

bool RowMutation::HasFresh() const {
  return std::any_of(plans_.begin(), plans_.end(),
                     [](const RowPlan& plan) { return !plan.fresh.empty(); });
}

Status RowMutation::CheckMaxRows(const RowPlan& plan) const {
  const TableFiles& files = *group_.files(plan.table);
  const uint64_t live = StateOf(plan).live + plan.fresh.size();
  const int64_t max_rows = files.config().max_rows;
  if (max_rows == 0 || plan.fresh.empty() || live <= static_cast<uint64_t>(max_rows))
    return Status();
  return Error(Code::kResourceExhausted, "table ", files.folder(), " would have ", live,
               " rows, max_rows is ", max_rows);
}

// Gives the fresh keys row numbers: returned ones first, then new ones.
Status RowMutation::ReserveRows(RowPlan& plan) {
  if (plan.fresh.empty()) return Status();
  TableFiles& files = *group_.files(plan.table);
  TableState& state = StateOf(plan);
  const uint64_t reused = std::min<uint64_t>(state.free_rows, plan.fresh.size());
  const uint64_t rows = state.rows + plan.fresh.size() - reused;
  if (rows > kMaxRowNumber) {
    return Error(Code::kResourceExhausted, "table ", files.folder(), " would have ", rows,
                 " rows, the format's limit is ", kMaxRowNumber);
  }
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const list, files.BoundPlanes(state));
  for (const Plane& plane : list->planes) {
    TSPS_RETURN_IF_ERROR(writer_.reserver.Ensure(*plane.file, rows * plane.row_bytes));
  }
  for (const uint32_t i : plan.fresh) {
    plan.rows[i] = state.free_rows > 0 ? files.free_stack()[--state.free_rows]
                                       : static_cast<uint32_t>(state.rows++);
  }
  state.live += plan.fresh.size();
  return Status();
}

Status RowMutation::Prepare(bool is_step) {
  // First: the index must not grow for rows that are refused.
  for (const RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(CheckMaxRows(plan));
  for (RowPlan& plan : plans_) {
    if (plan.fresh.empty()) continue;
    TSPS_RETURN_IF_ERROR(GrowIndex(group_, writer_, counters_, plan.table, plan.keys, plan.fresh));
  }
  // Growth has committed epochs of its own and changed index sizes.
  mutation_.Reset();
  for (RowPlan& plan : plans_) TSPS_RETURN_IF_ERROR(ReserveRows(plan));
  return WriteUndo(is_step);
}

Status RowMutation::WriteUndo(bool is_step) {
  std::vector<size_t> row_bytes(plans_.size());
  size_t bytes = 0;
  size_t next_bytes = 0;  // of a step of the same keys, which are there then
  for (size_t p = 0; p < plans_.size(); ++p) {
    const RowPlan& plan = plans_[p];
    TSPS_ASSIGN_OR_RETURN(const PlaneList* const list,
                          group_.files(plan.table)->BoundPlanes(StateOf(plan)));
    row_bytes[p] = RowBytes(*list, plan.planes);
    if (!plan.existing.empty()) bytes += UndoRowsBytes(plan.existing.size(), row_bytes[p]);
    if (!plan.fresh.empty()) bytes += UndoInsertsBytes(plan.fresh.size());
    next_bytes += UndoRowsBytes(plan.n, row_bytes[p]);
  }
  TSPS_RETURN_IF_ERROR(mutation_.Start(bytes, is_step ? next_bytes : 0));
  TSPS_FAULT_POINT("undo.reserved");
  std::vector<UndoRecordHeader*> images(plans_.size());
  for (size_t p = 0; p < plans_.size(); ++p) {
    const RowPlan& plan = plans_[p];
    if (!plan.existing.empty()) {
      const size_t n = plan.existing.size();
      images[p] = mutation_.Append(UndoKind::kRows, plan.table, n, UndoRowsBytes(n, row_bytes[p]));
      images[p]->planes = static_cast<uint32_t>(plan.planes);
      images[p]->row_bytes = static_cast<uint32_t>(row_bytes[p]);
    }
    if (!plan.fresh.empty()) {
      UndoRecordHeader* record = mutation_.Append(UndoKind::kInserts, plan.table, plan.fresh.size(),
                                                  UndoInsertsBytes(plan.fresh.size()));
      auto* keys = reinterpret_cast<int64_t*>(UndoPayload(record));
      for (size_t i = 0; i < plan.fresh.size(); ++i) keys[i] = plan.keys[plan.fresh[i]];
    }
    TSPS_FAULT_POINT("undo.record");
  }
  ForEachPlan([&](size_t p) {
    if (images[p] != nullptr) CopyImages(plans_[p], images[p]);
  });
  mutation_.Seal();
  return Status();
}

void RowMutation::CopyImages(const RowPlan& plan, UndoRecordHeader* record) {
  char* const payload = UndoPayload(record);
  auto* const rows = reinterpret_cast<uint32_t*>(payload);
  const RowPlanes planes = Planes(plan);
  const size_t n = plan.existing.size();
  executor_.ParallelFor(UndoBlocks(n), 1, [&](size_t first, size_t last) {
    for (size_t block = first; block < last; ++block) {
      const size_t begin = block * kUndoBlock;
      const size_t end = begin + UndoBlockRows(n, block);
      for (size_t i = begin; i < end; ++i) rows[i] = plan.rows[plan.existing[i]];
      char* to = payload + UndoBlockOffset(n, record->row_bytes, block);
      for (int plane = 0; plane < planes.n; ++plane) {
        const size_t bytes = planes.bytes[plane];
        for (size_t i = begin; i < end; ++i, to += bytes) {
          if (i + RowPlanes::kAhead < end) planes.Prefetch(plane, rows[i + RowPlanes::kAhead]);
          std::memcpy(to, planes.at(plane, rows[i]), bytes);
        }
      }
      SealUndoBlock(record, block);
    }
  });
}

// The planes are mapped: ReserveRows or WriteUndo has seen to it.
RowPlanes RowMutation::Planes(const RowPlan& plan) const {
  return RowPlanes(*group_.files(plan.table)->Planes(StateOf(plan)), plan.planes,
                   mutation_.next().changes);
}

void RowMutation::InitializeFresh(const RowPlan& plan) {
  const TableConfig& config = group_.files(plan.table)->config();
  const auto dim = static_cast<size_t>(config.dim);
  const RowPlanes planes = Planes(plan);
  executor_.ParallelFor(plan.fresh.size(), kRowGrain, [&](size_t begin, size_t end) {
    for (size_t k = begin; k < end; ++k) {
      const uint32_t i = plan.fresh[k];
      const uint32_t row = plan.rows[i];
      for (const Plane& plane : planes.list.planes) {
        if (plane.role == PlaneRole::kSlot || plane.role == PlaneRole::kMetadata) {
          plane.Initialize(row, 1);
        }
      }
      InitialRow(config.initializer, plan.keys[i], dim, planes.floats(0, row));
      planes.keys[row] = plan.keys[i];
    }
  });
}

void RowMutation::Begin() {
  for (const RowPlan& plan : plans_) mutation_.Touches(plan.table, plan.rows.data(), plan.n);
  mutation_.Begin(&executor_);
}

void RowMutation::Commit() {
  for (const RowPlan& plan : plans_) {
    TableFiles& files = *group_.files(plan.table);
    const uint32_t depth = StateOf(plan).depth;
    const RowPlanes planes = Planes(plan);
    for (const uint32_t i : plan.fresh) {
      const uint64_t hash = files.Hash(plan.keys[i]);
      const uint32_t segment = files.directory_entries()[DirectoryPosition(hash, depth)];
      InsertInSegment(files.segment(segment), plan.keys[i], hash, plan.rows[i]);
      planes.Touch(plan.rows[i]);
      TSPS_FAULT_POINT("commit.insert");
    }
  }
  mutation_.Publish();
  RaiseMax(counters_.publish_ns_max, mutation_.nanoseconds());
}

}  // namespace tsps
