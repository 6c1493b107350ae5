// GroupWriter's mutations of rows: steps, assigns and erases.
#include <algorithm>
#include <cstring>

#include "core/dedupe.h"
#include "core/fault_point.h"
#include "core/group.h"
#include "core/group_impl.h"
#include "core/index.h"
#include "core/merge.h"

namespace tsps {
namespace {

constexpr size_t kUpdateGrain = 256;
constexpr size_t kPrefetchAhead = 4;

void PrefetchRow(const float* row, size_t bytes) {
  const char* at = reinterpret_cast<const char*>(row);
  for (size_t offset = 0; offset < std::min<size_t>(bytes, 512); offset += 64)
    __builtin_prefetch(at + offset, 1);
}

}  // namespace

Status GroupWriter::ApplyStep(uint64_t step, const std::vector<TableUpdate>& updates,
                              Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  if (step != impl_->state.step + 1) {
    return Error(Code::kFailedPrecondition, "step ", step, " cannot be applied to ", group_.path(),
                 ": step ", impl_->state.step, " is the last committed one");
  }
  RowMutation mutation(*group_.impl_, *impl_, group_.counters_, executor);
  std::vector<bool> seen(static_cast<size_t>(group_.table_count()));
  uint64_t rows_written = 0;
  for (const TableUpdate& update : updates) {
    const auto table = static_cast<size_t>(update.table);
    const TableConfig& config = group_.config(update.table);
    if (seen[table])
      return Error(Code::kInvalidArgument, "table ", config.name, " is twice in step ", step);
    seen[table] = true;
    const auto kind = static_cast<OptimizerKind>(impl_->state.tables[table].optimizer);
    if (kind == OptimizerKind::kNone) {
      return Error(Code::kFailedPrecondition, "table ", group_.path(), "/", config.name,
                   " has no optimizer bound");
    }
    const Status hyper = ValidateHyper(kind, update.hyper, update.n_hyper);
    if (!hyper.ok()) return Error(hyper.code(), "table ", config.name, ": ", hyper.message());
    TSPS_RETURN_IF_ERROR(group_.CheckKeys(update.table, update.keys, update.n));
    const int64_t bad =
        FirstNonFiniteRow(update.gradients, update.n, static_cast<size_t>(config.dim), executor);
    if (bad >= 0) {
      return Error(Code::kInvalidArgument, "table ", config.name, ": the gradient of key ",
                   update.keys[bad], " is not finite; step ", step, " was not applied");
    }
    TSPS_RETURN_IF_ERROR(mutation.Plan(update.table, update.keys, update.n));
    rows_written += update.n;
  }
  TSPS_RETURN_IF_ERROR(mutation.Prepare());

  const auto update_rows = [&](size_t u, const std::vector<uint32_t>& positions) {
    const TableUpdate& update = updates[u];
    const RowPlan& plan = mutation.plans()[u];
    const size_t dim = static_cast<size_t>(group_.config(update.table).dim);
    const auto kind = static_cast<OptimizerKind>(
        impl_->state.tables[static_cast<size_t>(update.table)].optimizer);
    const RowUpdater updater(kind, dim, update.hyper);
    const int slots = SlotCount(kind);
    executor.ParallelFor(positions.size(), kUpdateGrain, [&](size_t begin, size_t end) {
      float* slot_rows[kMaxSlots] = {};
      for (size_t k = begin; k < end; ++k) {
        if (k + kPrefetchAhead < end) {
          for (int slot = -1; slot < slots; ++slot) {
            PrefetchRow(mutation.Address(plan, positions[k + kPrefetchAhead], slot),
                        dim * sizeof(float));
          }
        }
        const uint32_t i = positions[k];
        for (int slot = 0; slot < slots; ++slot) slot_rows[slot] = mutation.Address(plan, i, slot);
        updater.Update(update.gradients + i * dim, mutation.Address(plan, i, -1), slot_rows);
        TSPS_FAULT_POINT("apply.row");
      }
    });
  };
  for (size_t u = 0; u < updates.size(); ++u) {
    mutation.InitializeFresh(mutation.plans()[u]);
    update_rows(u, mutation.plans()[u].fresh);  // nobody can see these rows yet
  }
  mutation.Begin();
  for (size_t u = 0; u < updates.size(); ++u) update_rows(u, mutation.plans()[u].existing);
  mutation.next().step = step;
  mutation.Commit();
  group_.counters_.steps_applied.fetch_add(1, std::memory_order_relaxed);
  group_.counters_.rows_written.fetch_add(rows_written, std::memory_order_relaxed);
  return Status();
}

Status GroupWriter::Assign(int table, const int64_t* keys, const float* rows,
                           const float* const* slots, size_t n, Executor& executor) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_RETURN_IF_ERROR(group_.CheckKeys(table, keys, n));
  std::vector<int32_t> inverse(n);
  const std::vector<int64_t> unique = Dedupe({{keys, n, inverse.data()}}, executor);
  std::vector<size_t> last(unique.size());
  for (size_t i = 0; i < n; ++i) last[static_cast<size_t>(inverse[i])] = i;

  RowMutation mutation(*group_.impl_, *impl_, group_.counters_, executor);
  TSPS_RETURN_IF_ERROR(mutation.Plan(table, unique.data(), unique.size()));
  TSPS_RETURN_IF_ERROR(mutation.Prepare());
  const RowPlan& plan = mutation.plans()[0];
  const size_t dim = static_cast<size_t>(group_.config(table).dim);
  const int n_slots = slots == nullptr
                          ? 0
                          : SlotCount(static_cast<OptimizerKind>(
                                impl_->state.tables[static_cast<size_t>(table)].optimizer));
  const auto write_rows = [&](const std::vector<uint32_t>& positions) {
    executor.ParallelFor(positions.size(), kUpdateGrain, [&](size_t begin, size_t end) {
      for (size_t k = begin; k < end; ++k) {
        const uint32_t i = positions[k];
        std::memcpy(mutation.Address(plan, i, -1), rows + last[i] * dim, dim * sizeof(float));
        for (int slot = 0; slot < n_slots; ++slot) {
          std::memcpy(mutation.Address(plan, i, slot), slots[slot] + last[i] * dim,
                      dim * sizeof(float));
        }
        TSPS_FAULT_POINT("assign.row");
      }
    });
  };
  mutation.InitializeFresh(plan);
  write_rows(plan.fresh);
  mutation.Begin();
  write_rows(plan.existing);
  ++mutation.next().version;
  mutation.Commit();
  return Status();
}

Result<size_t> GroupWriter::Erase(int table, const int64_t* keys, size_t n) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  Group::Impl& group = *group_.impl_;
  TableFiles& files = *group.files(table);
  State next = impl_->state;
  TableState& state = next.tables[static_cast<size_t>(table)];
  std::vector<ErasedEntry> erased;
  SerialExecutor serial;
  std::vector<int32_t> inverse(n);
  for (const int64_t key : Dedupe({{keys, n, inverse.data()}}, serial)) {
    const uint64_t hash = HashKey(key);
    const uint32_t number = files.directory_entries()[DirectorySlot(hash, state.depth)];
    const Segment* segment = files.segment(number);
    if (const Entry* entry = FindInSegment(*segment, key, hash)) {
      erased.push_back(
          {number, static_cast<uint32_t>(entry - segment->entries), entry->row_plus_one});
    }
  }
  if (erased.empty()) return size_t{0};
  TSPS_RETURN_IF_ERROR(impl_->reserver.Ensure(
      files.free_rows(), (state.free_rows + erased.size()) * sizeof(uint32_t)));
  TSPS_RETURN_IF_ERROR(group.undo->Start(UndoErasesBytes(erased.size())));
  UndoRecordHeader* record =
      group.undo->Append(UndoKind::kErases, table, erased.size(), UndoErasesBytes(erased.size()));
  std::memcpy(UndoPayload(record), erased.data(), erased.size() * sizeof(ErasedEntry));
  group.undo->Seal(next.epoch + 1);
  group.control->Begin(next.epoch);
  for (const ErasedEntry& entry : erased) {
    StoreRelaxed(files.segment(entry.segment)->entries[entry.entry].row_plus_one, kTombstone);
    files.free_stack()[state.free_rows++] = entry.row_plus_one - 1;
    TSPS_FAULT_POINT("erase.entry");
  }
  state.live -= erased.size();
  ++next.version;
  ++next.epoch;
  group.control->Publish(next);
  impl_->state = std::move(next);
  return erased.size();
}

}  // namespace tsps
