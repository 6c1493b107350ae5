#include "core/group/group.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "core/base/fault_point.h"
#include "core/base/racy_copy.h"
#include "core/group/group_impl.h"
#include "core/group/reader_turns.h"
#include "core/group/record_checks.h"
#include "core/group/table_number.h"
#include "core/os/directory.h"

namespace tsps {
namespace {

constexpr int kLivenessIntervalMs = 100;
// After this number of lost attempts a reader asks the writer to wait for it.
constexpr int kLostAttempts = 2;
// A decision takes milliseconds, so waiting for it is cheaper than reading an undo log.
constexpr uint64_t kSealedWaitNs = 50'000'000;

}  // namespace

void RaiseMax(std::atomic<uint64_t>& maximum, uint64_t value) {
  uint64_t known = maximum.load(std::memory_order_relaxed);
  while (value > known && !maximum.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
  }
}

Result<std::shared_ptr<const Overlay>> Group::Impl::OverlayFor(uint64_t sequence,
                                                               const State& state) {
  std::lock_guard<std::mutex> lock(overlay_mutex);
  if (overlay == nullptr || overlay_sequence.load(std::memory_order_relaxed) != sequence) {
    TSPS_ASSIGN_OR_RETURN(auto built, Overlay::Build(*undo, state));
    overlay = std::move(built);
    overlay_sequence.store(sequence, std::memory_order_relaxed);
  }
  return overlay;
}

void Group::Impl::DropOverlay() {
  if (overlay_sequence.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard<std::mutex> lock(overlay_mutex);
  overlay_sequence.store(0, std::memory_order_relaxed);
  overlay.reset();
}

bool MutationWait::IsNeeded(uint64_t sequence) {
  if (!impl_.probe->Held()) return false;
  const bool sealed = impl_.control->IsSealed(sequence);
  if (sealed && impl_.overlay_sequence.load(std::memory_order_relaxed) == sequence) return false;
  const uint64_t now = NowNs();
  if (!sealed) {
    sealed_ns_ = 0;
  } else if (sealed_ns_ == 0 || sequence_ != sequence) {
    sealed_ns_ = now;
  }
  sequence_ = sequence;
  return sealed_ns_ == 0 || now < sealed_ns_ + kSealedWaitNs;
}

void MutationWait::Wait(uint64_t sequence) const { impl_.control->AwaitChange(sequence, 1); }

Status Group::Impl::CheckRead(const State& state, uint64_t epoch) {
  const bool known = state.version == checked_version.load(std::memory_order_relaxed);
  if ((known && state.epoch == epoch) || TSPS_FAULT_OFF("seqlock")) return Status();
  TSPS_RETURN_IF_ERROR(CheckRecord(state, epoch, *control));
  checked_version.store(state.version, std::memory_order_relaxed);
  return Status();
}

Group::Group() : impl_(std::make_unique<Impl>()) {}
Group::~Group() = default;

Result<std::shared_ptr<Group>> Group::Create(const std::string& path, const std::string& uuid,
                                             const GroupDraw& draw) {
  TSPS_RETURN_IF_ERROR(MakePrivateDirectory(path));
  std::shared_ptr<Group> group(new Group());
  group->path_ = path;
  Impl& impl = *group->impl_;
  // The control file is created last: without it the directory is no group, whatever a killed
  // creation left.
  TSPS_ASSIGN_OR_RETURN(impl.undo, UndoLog::Create(path + "/undo"));
  {
    TSPS_ASSIGN_OR_RETURN(auto lock, FileLock::Acquire(path + "/writer.lock"));
  }
  TSPS_ASSIGN_OR_RETURN(impl.probe, LockProbe::Open(path + "/writer.lock"));
  TSPS_ASSIGN_OR_RETURN(impl.control, ControlFile::Create(path + "/group", uuid, draw));
  return group;
}

Result<std::shared_ptr<Group>> Group::Open(const std::string& path) {
  TSPS_RETURN_IF_ERROR(CheckPrivateDirectory(path));
  std::shared_ptr<Group> group(new Group());
  group->path_ = path;
  Impl& impl = *group->impl_;
  TSPS_ASSIGN_OR_RETURN(impl.control, ControlFile::Open(path + "/group"));
  TSPS_ASSIGN_OR_RETURN(impl.undo, UndoLog::Open(path + "/undo"));
  TSPS_ASSIGN_OR_RETURN(impl.probe, LockProbe::Open(path + "/writer.lock"));
  TSPS_RETURN_IF_ERROR(group->CheckInPlace());  // otherwise the files may belong to two groups
  TSPS_ASSIGN_OR_RETURN(const std::vector<int> tables, group->Tables());
  for (const int table : tables) TSPS_RETURN_IF_ERROR(group->CheckTable(table));
  return group;
}

RowNumberCache& Group::row_numbers() const { return impl_->row_numbers; }

Status Group::Read(const std::function<Status(const ReadView&)>& read, double timeout_s) {
  return TryRead(read, timeout_s, INT_MAX).status();
}

Result<bool> Group::TryRead(const std::function<Status(const ReadView&)>& read, double timeout_s,
                            int attempts) {
  const ControlFile& control = *impl_->control;
  const uint64_t deadline = NowNs() + static_cast<uint64_t>(timeout_s * 1e9);
  MutationWait wait(*impl_);
  std::unique_ptr<ReaderTurn> turn;
  int lost = 0;
  State state;
  uint64_t blocked = 0;
  uint64_t blocked_by_growth = 0;
  // Counts the cost of a wait or a lost attempt, and whether growth was the cause.
  const auto count = [&](uint64_t cost) {
    blocked += cost;
    if (control.live().growing.load(std::memory_order_relaxed) != 0) blocked_by_growth += cost;
    counters_.read_retries.fetch_add(1, std::memory_order_relaxed);
    counters_.read_blocked_ns_total.fetch_add(cost, std::memory_order_relaxed);
  };
  while (true) {
    if (NowNs() > deadline) {
      return Error(Code::kUnavailable, "no consistent read of ", path_, " within ", timeout_s,
                   " s: its writer (pid ", control.live().writer_pid.load(),
                   ") is changing it all the time");
    }
    const uint64_t sequence = control.sequence();
    const bool unfinished = (sequence & 1) != 0 && !TSPS_FAULT_OFF("seqlock");
    if (unfinished && wait.IsNeeded(sequence)) {
      const uint64_t began = NowNs();
      wait.Wait(sequence);
      count(NowNs() - began);
      continue;
    }
    if (!unfinished) impl_->DropOverlay();
    const uint64_t began = ThreadNs();
    control.LoadState(sequence / 2, &state);
    if (control.Validate(sequence)) {
      TSPS_RETURN_IF_ERROR(impl_->CheckRead(state, sequence / 2));
      std::shared_ptr<const Overlay> overlay;
      if (unfinished) {
        auto result = impl_->OverlayFor(sequence, state);
        if (!result.ok()) {
          // A recovery may have begun the next mutation while its log was read.
          if (!control.Validate(sequence)) continue;
          return result.status();
        }
        overlay = *result;
      }
      impl_->tables.DropRemoved(state);
      const std::shared_ptr<const MappedTables::List> mapped = impl_->tables.list();
      const ReadView view(*this, state, *mapped, overlay.get());
      Status status = read(view);
      const bool has_unmapped = !view.missing_.empty();
      if (has_unmapped) status = impl_->tables.Map(path_, *impl_->control, state, view.missing_);
      if (!view.unmapped_.ok()) status = view.unmapped_;
      if (control.Validate(sequence)) {
        if (has_unmapped && status.ok()) continue;
        RaiseMax(counters_.read_blocked_ns_max, blocked);
        RaiseMax(counters_.growth_blocked_ns_max, blocked_by_growth);
        if (!status.ok()) return status;
        return true;
      }
    }
    count(ThreadNs() - began);
    if (--attempts == 0) {
      RaiseMax(counters_.read_blocked_ns_max, blocked);
      return false;
    }
    if (++lost >= kLostAttempts && turn == nullptr) turn = ReaderTurn::Take(path_);
  }
}

bool Group::WrittenElsewhere() const { return !impl_->tables.owned() && impl_->probe->Held(); }

uint64_t Group::step() const { return impl_->control->CommittedStep(); }

uint64_t Group::version() const { return impl_->control->CommittedVersion(); }

uint64_t Group::run_id() const { return impl_->control->live().run_id.load(); }

Status Group::WaitForStep(uint64_t step, double timeout_s,
                          const std::atomic<bool>* cancelled) const {
  const ControlFile& control = *impl_->control;
  const uint64_t deadline = NowNs() + static_cast<uint64_t>(timeout_s * 1e9);
  uint64_t next_liveness_check = NowNs() + kLivenessIntervalMs * 1000000ull;
  while (true) {
    const uint64_t sequence = control.sequence();
    if (control.CommittedStep() >= step) return Status();
    const uint64_t now = NowNs();
    if (cancelled != nullptr && cancelled->load()) {
      return Error(Code::kUnavailable, "the wait for step ", step, " of ", path_, " was cancelled");
    }
    if (now >= next_liveness_check) {
      next_liveness_check = now + kLivenessIntervalMs * 1000000ull;
      if (!impl_->probe->Held() && control.CommittedStep() < step) {
        return Error(Code::kUnavailable, "the leader (pid ", control.live().writer_pid.load(),
                     ") of ", path_, " died. Its last step is ", control.CommittedStep(),
                     ", and step ", step, " was awaited");
      }
    }
    if (now >= deadline) {
      return Error(Code::kDeadlineExceeded, "step ", step, " of ", path_,
                   " was not published within ", timeout_s, " s: its leader (pid ",
                   control.live().writer_pid.load(), ") is alive and at step ",
                   control.CommittedStep());
    }
    control.AwaitChange(sequence, kLivenessIntervalMs);
  }
}

GroupInfo Group::Info() const {
  GroupInfo info;
  info.path = path_;
  info.uuid = impl_->control->uuid();
  State state;
  const uint64_t sequence = impl_->control->LoadLastState(&state);
  info.step = state.step;
  info.version = state.version;
  info.writer_pid = impl_->control->live().writer_pid.load();
  info.writer_alive = impl_->probe->Held();
  info.run_id = run_id();
  info.unfinished = (sequence & 1) != 0;
  if (info.unfinished) {
    const auto sealed = impl_->control->SealedAfter(state.epoch);
    if (sealed.ok()) info.sealed = *sealed;
  }
  return info;
}

uint64_t Group::Bytes() const {
  State state;
  impl_->control->LoadLastState(&state);
  uint64_t bytes = impl_->control->file().RefreshSize() + impl_->undo->file().RefreshSize();
  for (size_t place = 0; place < state.tables.size(); ++place) {
    if (IsVacant(state.tables[place])) continue;
    bytes += TableFiles::BytesIn(path_ + "/" + impl_->control->TableName(place));
  }
  return bytes;
}

GroupDraw Group::draw() const { return impl_->control->draw(); }

Status Group::CheckInPlace() const { return impl_->control->file().CheckInPlace(); }

Result<std::vector<int>> Group::Tables() {
  std::vector<int> tables;
  TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) {
    tables = view.tables();
    return Status();
  }));
  return tables;
}

Result<int> Group::FindTable(const std::string& name) {
  int number = 0;
  TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) -> Status {
    for (const int table : view.tables()) {
      if (impl_->control->TableName(PlaceOf(table)) != name) continue;
      number = table;
      static_cast<void>(view.Listed(table));
      return Status();
    }
    return Error(Code::kNotFound, "no table '", name, "' in ", path_);
  }));
  return number;
}

Result<std::optional<int>> Group::SketchOf(int table) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<const TableConfig> config, Config(table));
  const std::string name = SketchName(config->name);
  const auto found = FindTable(name);
  if (found.status().code() == Code::kNotFound) return std::optional<int>();
  TSPS_RETURN_IF_ERROR(found.status());
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<const TableConfig> sketch, Config(*found));
  if (sketch->uuid == SketchUuid(config->uuid)) return std::optional<int>(*found);
  return Error(Code::kFailedPrecondition, "table ", path_, "/", config->name, " needs the name '",
               name, "' for the table of its counts, and another table has it");
}

// Checks the table outside of Read(): checks of many tables take longer than the writer pauses
// between mutations.
Status Group::CheckTable(int table) {
  constexpr int kTries = 8;  // another optimizer may be bound meanwhile
  for (int tries = 1; true; ++tries) {
    TableState state = {};
    TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) {
      state = view.Has(table) ? view.StateOf(table) : TableState();
      return Status();
    }));
    if (IsVacant(state)) return Status();
    const Status checked =
        MappedTables::Open(path_, *impl_->control, PlaceOf(table), state).status();
    if (checked.ok() || tries == kTries) return checked;
  }
}

Result<std::shared_ptr<const TableConfig>> Group::Config(int table) {
  const std::shared_ptr<const MappedTables::List> mapped = impl_->tables.list();
  if (table >= 0 && PlaceOf(table) < mapped->size()) {
    const MappedTable& known = (*mapped)[PlaceOf(table)];
    if (known.Is(RemovedBefore(table))) return known.files->shared_config();
  }
  std::shared_ptr<const TableConfig> config;
  TSPS_RETURN_IF_ERROR(Read([&](const ReadView& view) {
    if (view.Listed(table)) config = view.Files(table).shared_config();
    return Status();
  }));
  return config;
}

Status Group::CheckUuid(int table, const std::string& uuid) {
  TSPS_ASSIGN_OR_RETURN(const auto known, Config(table));
  if (uuid.empty() || uuid == known->uuid) return Status();
  return Error(Code::kFailedPrecondition, "table ", path_, "/", known->name, " has uuid ",
               known->uuid, ", not ", uuid, ". It is not the table that this layer was built with");
}

void Group::Forget(const std::string& name) { impl_->tables.Forget(name); }

}  // namespace tsps
