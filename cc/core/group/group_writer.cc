#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/base/fault_point.h"
#include "core/group/group.h"
#include "core/group/group_impl.h"
#include "core/group/mutation.h"
#include "core/group/record_checks.h"
#include "core/group/row_mutation.h"
#include "core/group/table_number.h"
#include "core/os/directory.h"
#include "core/os/process_info.h"
#include "core/table/index.h"
#include "core/table/table_checks.h"

namespace tsps {
namespace {

Status ValidateConfig(const TableConfig& config, const std::string& group) {
  if (!IsTableName(config.name)) {
    return Error(
        Code::kInvalidArgument,
        "a table's name must have 1 to 128 characters of [A-Za-z0-9._-] and no leading dot, "
        "and must not be the name of a group's file (group, undo, writer.lock). Received: '",
        config.name, "' for ", group);
  }
  const auto hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  if (config.uuid.size() != 32 || !std::all_of(config.uuid.begin(), config.uuid.end(), hex)) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": a uuid must have 32 hexadecimal digits. Received: '", config.uuid, "'");
  }
  if (config.dim < 1 || config.dim > kMaxDim) {
    return Error(Code::kInvalidArgument, "table ", config.name, ": dim must be in [1, ", kMaxDim,
                 "]. Received: ", config.dim);
  }
  if (config.key_limit < 0 || config.max_rows < 0) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": key_limit and max_rows must not be negative. Received: ", config.key_limit,
                 " and ", config.max_rows);
  }
  if (!IsRowType(config.row_type)) {
    return Error(
        Code::kInvalidArgument, "table ", config.name,
        ": rows must be float32, bfloat16 or float16. Received: ", PlaneTypeName(config.row_type));
  }
  TSPS_RETURN_IF_ERROR(ValidateMetadata(config));
  TSPS_RETURN_IF_ERROR(ValidateStorage(config));
  TSPS_RETURN_IF_ERROR(ValidateShard(config.shard));
  return ValidateInitializer(config.initializer);
}

// Deletes the folders of tables that a killed writer left: it was creating them, or had published
// their removal.
void RemoveLeftovers(const std::string& group, const ControlFile& control, const State& state) {
  std::set<std::string> named;
  for (size_t place = 0; place < state.tables.size(); ++place) {
    if (!IsVacant(state.tables[place])) named.insert(control.TableName(place));
  }
  for (const std::string& name : EntriesOf(group)) {
    if (name[0] == '.' || named.count(name) != 0) continue;
    const std::string folder = group + "/" + name;
    if (TableFiles::IsLeftover(folder)) TableFiles::Remove(folder);
  }
}

}  // namespace

Status GroupWriter::Impl::CheckWriter(const Group& group) const {
  if (!lock->HeldByThisProcess()) {
    return Error(Code::kFailedPrecondition, "this process was forked from the writer of ",
                 group.path(),
                 " and may not write to it. Start processes with the method `spawn` of ",
                 "multiprocessing, not with `fork`");
  }
  if (prepared != nullptr) {
    return Error(Code::kFailedPrecondition, prepared->is_step() ? "step " : "a change after step ",
                 state.step + (prepared->is_step() ? 1 : 0), " of ", group.path(),
                 " is prepared; nothing can be written until it is published or aborted");
  }
  return Status();
}

GroupWriter::GroupWriter(Group& group)
    : group_(group), impl_(std::make_unique<Impl>(group, *group.impl_->control)) {}
GroupWriter::~GroupWriter() {
  if (sealed()) impl_->prepared->Leave();
  group_.impl_->row_numbers.Enable(false);
  group_.impl_->tables.Disown();
}

Result<int> GroupWriter::Impl::PlaceOf(const Group& group, int table) const {
  const size_t place = tsps::PlaceOf(table);
  if (table >= 0 && place < state.tables.size() && !IsVacant(state.tables[place]) &&
      state.tables[place].removed == RemovedBefore(table)) {
    return static_cast<int>(place);
  }
  return Error(Code::kNotFound, "group ", group.path(), " has no table ", table,
               ". It may have been removed");
}

namespace {

// Makes the records of a table writable, as of a state after recovery.
Status MakeRecordsWritable(TableFiles& files, const TableState& state) {
  TSPS_ASSIGN_OR_RETURN(RecordStore* const records, files.Records(state));
  return records == nullptr ? Status() : records->MakeWritable(state.moves);
}

void RemoveOtherGenerations(const TableFiles& files, const TableState& state) {
  if (!files.config().storage.tiered()) return;
  RemoveOtherRecords(files.folder(), files.config().storage, state.planes);
}

}  // namespace

Result<std::unique_ptr<GroupWriter>> Group::OpenWriter(Undecided outcome) {
  TSPS_RETURN_IF_ERROR(CheckInPlace());  // otherwise this would lock another group
  auto lock = FileLock::Acquire(path_ + "/writer.lock");
  if (!lock.ok()) {
    if (lock.status().code() != Code::kAborted) return lock.status();
    return Error(Code::kAborted, "group ", path_, " has a writer already (pid ",
                 impl_->control->live().writer_pid.load(),
                 "). A group can have one writer only. Open it read-only");
  }
  TSPS_RETURN_IF_ERROR(impl_->control->MakeWritable());
  TSPS_RETURN_IF_ERROR(impl_->undo->file().MakeWritable());
  std::unique_ptr<GroupWriter> writer(new GroupWriter(*this));
  writer->impl_->lock = std::move(*lock);
  TSPS_ASSIGN_OR_RETURN(writer->impl_->turns, ReaderTurns::Open(path_));
  State& state = writer->impl_->state;
  const uint64_t epoch = impl_->control->sequence() / 2;
  impl_->control->LoadState(epoch, &state);
  TSPS_RETURN_IF_ERROR(CheckRecord(state, epoch, *impl_->control));
  impl_->tables.Own();
  std::vector<size_t> places;
  for (size_t place = 0; place < state.tables.size(); ++place) {
    if (!IsVacant(state.tables[place])) places.push_back(place);
  }
  TSPS_RETURN_IF_ERROR(impl_->tables.Map(path_, *impl_->control, state, places));
  for (const size_t place : places) {
    TableFiles& files = *impl_->tables.files(place);
    TSPS_RETURN_IF_ERROR(files.CheckState(state.tables[place]));
    TSPS_RETURN_IF_ERROR(files.MakeWritable(state.tables[place]));
  }
  impl_->control->live().writer_pid.store(getpid());
  impl_->row_numbers.Enable(true);
  impl_->control->live().writer_start.store(StartOfThisProcess());
  TSPS_RETURN_IF_ERROR(Recover(*impl_, outcome, &state));
  for (const size_t place : places) {
    TableFiles& files = *impl_->tables.files(place);
    TSPS_RETURN_IF_ERROR(CheckIndex(files, state.tables[place]));
    TSPS_RETURN_IF_ERROR(files.RemoveOtherPlanes(state.tables[place]));
    RemoveOtherGenerations(files, state.tables[place]);
    TSPS_RETURN_IF_ERROR(MakeRecordsWritable(files, state.tables[place]));
  }
  RemoveLeftovers(path_, *impl_->control, state);
  return writer;
}

Result<std::shared_ptr<TableFiles>> GroupWriter::Impl::Remap(const Group& group, int place,
                                                             const TableState& table) {
  TSPS_ASSIGN_OR_RETURN(auto files, MappedTables::Open(group.path(), *group.impl_->control,
                                                       static_cast<size_t>(place), table));
  TSPS_RETURN_IF_ERROR(files->MakeWritable(table));
  TSPS_RETURN_IF_ERROR(MakeRecordsWritable(*files, table));
  return files;
}

Result<int> GroupWriter::CreateTable(const TableConfig& config) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_RETURN_IF_ERROR(ValidateConfig(config, group_.path()));
  Group::Impl& group = *group_.impl_;
  Mutation mutation(*group_.impl_, *impl_);
  State& next = mutation.next();
  size_t place = next.tables.size();
  for (size_t p = next.tables.size(); p-- > 0;) {
    if (!IsVacant(next.tables[p]) && group.control->TableName(p) == config.name) {
      return Error(Code::kAlreadyExists, "table ", group_.path(), "/", config.name,
                   " already exists");
    }
    if (IsVacant(next.tables[p]) && next.tables[p].removed <= kMaxRemoved) place = p;
  }
  if (place >= kMaxTables) {
    return Error(Code::kResourceExhausted, "group ", group_.path(), " has ", kMaxTables,
                 " tables, which is the limit");
  }
  const uint64_t index_seed = IndexSeed(group.control->draw().index_seed, config.uuid);
  // Creating a table removes what is in its folder's place.
  TSPS_RETURN_IF_ERROR(group_.CheckInPlace());
  if (place == next.tables.size()) next.tables.push_back(TableState());
  TSPS_ASSIGN_OR_RETURN(auto files,
                        TableFiles::Create(group_.path() + "/" + config.name, config, index_seed));
  TSPS_FAULT_POINT("create.files");
  TableState& state = next.tables[place];  // all zero, except `removed`
  state.segments = 1;
  state.planes = TableFiles::kFirstGeneration;
  state.flags = kTableUsed;
  SetIndexSeed(&state, index_seed);
  state.complete_since = next.changes + 1;  // an earlier table of this uuid may have generations
  if (config.storage.tiered()) state.flags |= kTableAbsentElsewhere;
  group.control->SetTableName(place, config.name);
  ++next.version;
  const int table = TableNumber(place, state.removed);
  group.tables.Put(place, state.removed, std::move(files));
  const Status committed = mutation.CommitState();
  if (!committed.ok()) {
    group.tables.Drop(place);
    return committed;
  }
  return table;
}

Status GroupWriter::RemoveTable(int table) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TSPS_RETURN_IF_ERROR(group_.CheckInPlace());  // otherwise the folder may be another group's
  Group::Impl& group = *group_.impl_;
  TableFiles& files = *group.files(place);
  const std::string folder = files.folder();
  const auto sketch = group_.SketchOf(table);
  if (sketch.ok() && sketch->has_value()) TSPS_RETURN_IF_ERROR(RemoveTable(**sketch));
  impl_->reserver.Cancel(files.Mappings());
  Mutation mutation(*group_.impl_, *impl_);
  State& next = mutation.next();
  TableState vacant = {};
  vacant.removed = RemovedBefore(table) + 1;
  next.tables[static_cast<size_t>(place)] = vacant;
  ++next.version;
  TSPS_RETURN_IF_ERROR(mutation.CommitState());
  TSPS_FAULT_POINT("remove.published");
  impl_->memory[static_cast<size_t>(place)] = TableMemory();
  group.tables.Drop(static_cast<size_t>(place));
  TableFiles::Remove(folder);
  return Status();
}

Status GroupWriter::BindOptimizer(int table, const OptimizerConfig& config, bool replace) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  TableFiles& files = *group_.impl_->files(place);
  const TableState& state = impl_->state.tables[static_cast<size_t>(place)];
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const now, files.BoundPlanes(state));
  const OptimizerConfig& bound = now->optimizer;
  if (bound.kind == config.kind &&
      std::equal(bound.slot_init, bound.slot_init + SlotCount(bound.kind), config.slot_init)) {
    return Status();
  }
  if (bound.kind != OptimizerKind::kNone && !replace) {
    return Error(Code::kFailedPrecondition, "table ", files.folder(), " is bound to optimizer ",
                 OptimizerKindName(bound.kind), ", or has other initial slot values. Binding ",
                 OptimizerKindName(config.kind), " would drop its slots. To do so, set `replace`");
  }
  return Rebind(place, config, state.index_seed);
}

Status GroupWriter::RenewSlots(int table) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  const TableState& state = impl_->state.tables[static_cast<size_t>(place)];
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const now, group_.impl_->files(place)->BoundPlanes(state));
  if (now->slots() == 0) return SetOptimizer(table, OptimizerUse());
  return Rebind(place, now->optimizer, state.index_seed);
}

Status GroupWriter::SetOptimizer(int table, const OptimizerUse& optimizer) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  const TableState& now = impl_->state.tables[static_cast<size_t>(place)];
  if (now.optimizer_id == optimizer.id && now.optimizer_steps == optimizer.steps) return Status();
  Mutation mutation(*group_.impl_, *impl_);
  TableState& state = mutation.next().tables[static_cast<size_t>(place)];
  state.optimizer_id = optimizer.id;
  state.optimizer_steps = optimizer.steps;
  ++state.version;
  ++mutation.next().version;
  return mutation.CommitState();
}

Result<bool> GroupWriter::TakeIndexSeed(int table, uint64_t seed) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  TSPS_ASSIGN_OR_RETURN(const int place, impl_->PlaceOf(group_, table));
  const TableState& state = impl_->state.tables[static_cast<size_t>(place)];
  if (state.index_seed == seed) return true;
  TableFiles& files = *group_.impl_->files(place);
  if (state.rows > 0 || state.segments > 1 || files.segment(0)->used > 0) return false;
  if (files.config().storage.tiered()) {
    TSPS_ASSIGN_OR_RETURN(const RecordStore* const records, files.Records(state));
    if (records->rows() > 0) return false;
    TSPS_ASSIGN_OR_RETURN(const PlaneList* const now, files.BoundPlanes(state));
    TSPS_RETURN_IF_ERROR(Rebind(place, now->optimizer, seed));
    return true;
  }
  Mutation mutation(*group_.impl_, *impl_);
  TableState& next = mutation.next().tables[static_cast<size_t>(place)];
  SetIndexSeed(&next, seed);
  ++next.version;
  ++mutation.next().version;
  TSPS_RETURN_IF_ERROR(mutation.CommitState());
  return true;
}

Status GroupWriter::Rebind(int place, const OptimizerConfig& config, uint64_t index_seed) {
  TableFiles& files = *group_.impl_->files(place);
  const bool tiered = files.config().storage.tiered();
  TSPS_ASSIGN_OR_RETURN(const PlaneList* const now,
                        files.BoundPlanes(impl_->state.tables[static_cast<size_t>(place)]));
  const bool had_slots = now->optimizer.kind != OptimizerKind::kNone;
  if (tiered) TSPS_RETURN_IF_ERROR(DemoteAll(*group_.impl_, *impl_, group_.counters_, place));
  Mutation mutation(*group_.impl_, *impl_);
  State& next = mutation.next();
  TableState& state = next.tables[static_cast<size_t>(place)];
  TSPS_RETURN_IF_ERROR(files.CreatePlanes(state, config));
  if (tiered) {
    TSPS_ASSIGN_OR_RETURN(state.moves, files.ConvertRecords(state, index_seed));
    state.rows = state.free_rows = 0;
  }
  TSPS_FAULT_POINT("bind.files");
  ++state.planes;
  SetIndexSeed(&state, index_seed);
  state.optimizer_id = state.optimizer_steps = 0;
  ++state.version;
  state.complete_since = next.changes + 1;  // all rows have other slots
  ++next.version;
  // The new mappings have only the new binding, so that the memory of the old one is freed. This
  // comes before the commit, because it can fail.
  std::shared_ptr<TableFiles> remapped;
  if (tiered || had_slots) {
    TSPS_ASSIGN_OR_RETURN(remapped, impl_->Remap(group_, place, state));
  }
  TSPS_RETURN_IF_ERROR(mutation.CommitState());
  TSPS_FAULT_POINT("bind.published");
  const TableState& committed = impl_->state.tables[static_cast<size_t>(place)];
  files.Planes(committed);
  static_cast<void>(files.RemoveOtherPlanes(committed));
  RemoveOtherGenerations(files, committed);
  if (tiered) {
    TableMemory& memory = impl_->memory[static_cast<size_t>(place)];
    TableMemory next_memory;
    next_memory.eviction = std::move(memory.eviction);
    next_memory.admission = std::move(memory.admission);
    next_memory.sketch = memory.sketch;
    memory = std::move(next_memory);
  }
  if (remapped != nullptr) {
    impl_->reserver.Cancel(files.Mappings());
    group_.impl_->tables.Put(static_cast<size_t>(place), committed.removed, std::move(remapped));
  }
  return Status();
}

Result<uint32_t> GroupWriter::MarkChanges() {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  Mutation mutation(*group_.impl_, *impl_);
  if (mutation.next().changes == kFreeRow - 1) {
    return Error(Code::kResourceExhausted, "group ", group_.path(), " has had ", kFreeRow - 1,
                 " change generations, which is the format's limit");
  }
  const uint32_t generation = ++mutation.next().changes;
  TSPS_RETURN_IF_ERROR(mutation.CommitState());
  return generation;
}

void GroupWriter::SetRun(uint64_t run_id) { group_.impl_->control->live().run_id.store(run_id); }

Status GroupWriter::SetStep(uint64_t step) {
  TSPS_RETURN_IF_ERROR(impl_->CheckWriter(group_));
  Mutation mutation(*group_.impl_, *impl_);
  State& next = mutation.next();
  next.step = step;
  ++next.version;
  return mutation.CommitState();
}

}  // namespace tsps
