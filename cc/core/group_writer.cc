#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

#include "core/fault_point.h"
#include "core/group.h"
#include "core/group_impl.h"

namespace tsps {
namespace {

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
  if (config.dim < 1 || config.dim > kMaxDim) {
    return Error(Code::kInvalidArgument, "table ", config.name, ": dim must be in [1, ", kMaxDim,
                 "], received ", config.dim);
  }
  if (config.key_limit < 0 || config.max_rows < 0) {
    return Error(Code::kInvalidArgument, "table ", config.name,
                 ": key_limit and max_rows must not be negative, received ", config.key_limit,
                 " and ", config.max_rows);
  }
  return ValidateInitializer(config.initializer);
}

}  // namespace

Status GroupWriter::Impl::CheckWriter(const Group& group) const {
  if (!lock->HeldByThisProcess()) {
    return Error(Code::kFailedPrecondition, "this process was forked from the writer of ",
                 group.path(), " and may not write to it");
  }
  if (prepared != nullptr) {
    return Error(Code::kFailedPrecondition, "step ", state.step + 1, " of ", group.path(),
                 " is prepared; nothing can be written until it is committed or aborted");
  }
  return Status();
}

GroupWriter::GroupWriter(Group& group) : group_(group), impl_(std::make_unique<Impl>()) {}
GroupWriter::~GroupWriter() = default;

Result<std::unique_ptr<GroupWriter>> Group::OpenWriter() {
  TSPS_RETURN_IF_ERROR(CheckInPlace());  // the lock would be another group's
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
  for (size_t t = 0; t < state.tables.size(); ++t) {
    TableFiles& files = *impl_->files(static_cast<int>(t));
    TSPS_RETURN_IF_ERROR(files.CheckState(state.tables[t]));
    TSPS_RETURN_IF_ERROR(files.MakeWritable(state.tables[t]));
  }
  impl_->control->live().writer_pid.store(getpid());
  impl_->control->live().writer_start.store(ProcessStart());
  TSPS_RETURN_IF_ERROR(Recover(*impl_, &state));
  return writer;
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
  // Creating a table removes what lies in the way.
  TSPS_RETURN_IF_ERROR(group_.CheckInPlace());
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
