#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
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

// Field 22 of /proc/self/stat: with the pid it identifies a process even when pids are reused.
uint64_t ProcessStart() {
  std::FILE* file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return 0;
  char text[1024];
  const size_t n = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[n] = 0;
  const char* at = std::strrchr(text, ')');  // the command name may contain anything
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

Status ValidateConfig(const TableConfig& config, const std::string& group) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  if (config.name.empty() || config.name.size() > 128 || config.name[0] == '.' ||
      !std::all_of(config.name.begin(), config.name.end(), allowed)) {
    return Error(
        Code::kInvalidArgument,
        "a table's name has 1 to 128 characters of [A-Za-z0-9._-] and no leading dot, received '",
        config.name, "' for ", group);
  }
  if (config.name == "group" || config.name == "undo" || config.name == "writer.lock") {
    return Error(Code::kInvalidArgument, "'", config.name,
                 "' is a file of every group, not a table's name: ", group);
  }
  const auto hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  if (config.uuid.size() != 32 || !std::all_of(config.uuid.begin(), config.uuid.end(), hex)) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": a uuid has 32 hexadecimal digits, received '", config.uuid, "'");
  }
  if (config.dim < 1 || config.dim > 65536) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": dim must be in [1, 65536], received ", config.dim);
  }
  if (config.key_limit < 0 || config.max_rows < 0) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": key_limit and max_rows must not be negative, received ", config.key_limit,
                 " and ", config.max_rows);
  }
  return ValidateInitializer(config.initializer);
}

void PrefetchRow(const float* row, size_t bytes) {
  const char* at = reinterpret_cast<const char*>(row);
  for (size_t offset = 0; offset < std::min<size_t>(bytes, 512); offset += 64)
    __builtin_prefetch(at + offset, 1);
}

}  // namespace

Status GroupWriter::Impl::CheckWriter(const Group& group) const {
  if (lock->HeldByThisProcess()) return Status();
  return Error(Code::kFailedPrecondition, "this process was forked from the writer of ",
               group.path(), " and may not write to it");
}

GroupWriter::GroupWriter(Group& group) : group_(group), impl_(std::make_unique<Impl>()) {}
GroupWriter::~GroupWriter() = default;

Result<std::unique_ptr<GroupWriter>> Group::OpenWriter() {
  auto lock = WriterLock::Acquire(path_ + "/writer.lock");
  if (!lock.ok()) {
    if (lock.status().code() != Code::kAborted) return lock.status();
    return Error(Code::kAborted, "group ", path_, " has a writer already (pid ",
                 impl_->control->live().writer_pid.load(),
                 "): one writer per group; open it read-only");
  }
  TSPS_RETURN_IF_ERROR(impl_->control->MakeWritable());
  TSPS_RETURN_IF_ERROR(impl_->undo->file().MakeWritable());
  std::unique_ptr<GroupWriter> writer(new GroupWriter(*this));
  writer->impl_->lock = std::move(*lock);
  State& state = writer->impl_->state;
  impl_->control->LoadState(impl_->control->sequence() / 2, &state);
  TSPS_RETURN_IF_ERROR(impl_->MapTables(path_, state));
  for (int t = 0; t < table_count(); ++t) TSPS_RETURN_IF_ERROR(impl_->files(t)->MakeWritable());
  impl_->control->live().writer_pid.store(getpid());
  impl_->control->live().writer_start.store(ProcessStart());
  TSPS_RETURN_IF_ERROR(Recover(*impl_, &state));
  return writer;
}

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

namespace {

// A mutation that changes nothing but the commit record.
Status CommitState(Group::Impl& group, State next, State* committed) {
  TSPS_RETURN_IF_ERROR(group.undo->Start(0));
  group.undo->Seal(next.epoch + 1);
  group.control->Begin(next.epoch);
  ++next.epoch;
  group.control->Publish(next);
  *committed = std::move(next);
  return Status();
}

}  // namespace

Result<int> GroupWriter::CreateTable(const TableConfig& config) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_RETURN_IF_ERROR(ValidateConfig(config, group_.path()));
  Group::Impl& group = *group_.impl_;
  for (int t = 0; t < group_.table_count(); ++t) {
    if (group_.config(t).name == config.name) {
      return Error(Code::kAlreadyExists, "table ", group_.path(), "/", config.name, " exists");
    }
  }
  const size_t index = impl_->state.tables.size();
  if (index >= kMaxTables) {
    return Error(Code::kResourceExhausted, "group ", group_.path(), " has ", kMaxTables,
                 " tables already");
  }
  TSPS_ASSIGN_OR_RETURN(auto files, TableFiles::Create(group_.path() + "/" + config.name, config));
  TSPS_FAULT_POINT("create.files");
  State next = impl_->state;
  TableState state = {};
  state.segments = 1;
  std::memcpy(state.name, config.name.data(), config.name.size());
  next.tables.push_back(state);
  ++next.version;
  {
    std::lock_guard<std::mutex> lock(group.mutex);
    group.Add(std::move(files));
  }
  TSPS_RETURN_IF_ERROR(CommitState(group, std::move(next), &impl_->state));
  return static_cast<int>(index);
}

Status GroupWriter::BindOptimizer(int table, const OptimizerConfig& config, bool replace) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TableFiles& files = *group_.impl_->files(table);
  State next = impl_->state;
  TableState& state = next.tables[static_cast<size_t>(table)];
  const auto bound = static_cast<OptimizerKind>(state.optimizer);
  if (bound == config.kind &&
      std::equal(state.slot_init, state.slot_init + kMaxSlots, config.slot_init)) {
    return Status();
  }
  if (bound != OptimizerKind::kNone && !replace) {
    return Error(Code::kFailedPrecondition, "table ", files.folder(), " is bound to optimizer ",
                 OptimizerKindName(bound), " (or to other initial slot values); binding ",
                 OptimizerKindName(config.kind), " would drop its slots: ask for it with replace");
  }
  const uint32_t old_generation = state.generation;
  TSPS_RETURN_IF_ERROR(files.CreateSlots(old_generation + 1, config, state.rows));
  TSPS_FAULT_POINT("bind.files");
  state.generation = old_generation + 1;
  state.optimizer = static_cast<uint32_t>(config.kind);
  std::copy(config.slot_init, config.slot_init + kMaxSlots, state.slot_init);
  ++next.version;
  TSPS_RETURN_IF_ERROR(CommitState(*group_.impl_, std::move(next), &impl_->state));
  files.RemoveSlots(old_generation, bound);
  return Status();
}

Status GroupWriter::SetStep(uint64_t step) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  State next = impl_->state;
  next.step = step;
  ++next.version;
  return CommitState(*group_.impl_, std::move(next), &impl_->state);
}

}  // namespace tsps
