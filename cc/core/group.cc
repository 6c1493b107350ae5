#include "core/group.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/fault_point.h"
#include "core/group_impl.h"
#include "core/racy_copy.h"

namespace tsps {
namespace {

constexpr int kLivenessIntervalMs = 100;

std::string TableName(const TableState& state) {
  return std::string(state.name, strnlen(state.name, sizeof(state.name)));
}

}  // namespace

void RaiseMax(std::atomic<uint64_t>& maximum, uint64_t value) {
  uint64_t known = maximum.load(std::memory_order_relaxed);
  while (value > known && !maximum.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
  }
}

void Group::Impl::Add(std::unique_ptr<TableFiles> table) {
  const int index = n_tables.load(std::memory_order_relaxed);
  tables[static_cast<size_t>(index)].store(table.get(), std::memory_order_release);
  owned.push_back(std::move(table));
  n_tables.store(index + 1, std::memory_order_release);
}

Status Group::Impl::MapTables(const std::string& group_path, const State& state) {
  if (n_tables.load(std::memory_order_acquire) >= static_cast<int>(state.tables.size()))
    return Status();
  std::lock_guard<std::mutex> lock(mutex);
  while (n_tables.load(std::memory_order_relaxed) < static_cast<int>(state.tables.size())) {
    const TableState& table = state.tables[static_cast<size_t>(n_tables.load())];
    TSPS_ASSIGN_OR_RETURN(auto files, TableFiles::Open(group_path + "/" + TableName(table)));
    TSPS_RETURN_IF_ERROR(control->file().CheckInPlace());  // else they may be another group's
    TSPS_RETURN_IF_ERROR(files->CheckState(table));
    Add(std::move(files));
  }
  return Status();
}

Result<std::shared_ptr<const Overlay>> Group::Impl::OverlayFor(uint64_t sequence) {
  std::lock_guard<std::mutex> lock(overlay_mutex);
  if (overlay == nullptr || overlay_sequence != sequence) {
    TSPS_ASSIGN_OR_RETURN(auto built,
                          Overlay::Build(*undo, sequence / 2 + 1, static_cast<size_t>(kMaxTables)));
    overlay = std::move(built);
    overlay_sequence = sequence;
  }
  return overlay;
}

Group::Group() : impl_(std::make_unique<Impl>()) {}
Group::~Group() = default;

Result<std::shared_ptr<Group>> Group::Create(const std::string& path, const std::string& uuid) {
  TSPS_RETURN_IF_ERROR(MakePrivateDirectory(path));
  std::shared_ptr<Group> group(new Group());
  group->path_ = path;
  Impl& impl = *group->impl_;
  // The control file last: without it the directory is no group, whatever else a killed creation
  // left.
  TSPS_ASSIGN_OR_RETURN(impl.undo, UndoLog::Create(path + "/undo"));
  {
    TSPS_ASSIGN_OR_RETURN(auto lock, WriterLock::Acquire(path + "/writer.lock"));
  }
  TSPS_ASSIGN_OR_RETURN(impl.probe, WriterProbe::Open(path + "/writer.lock"));
  TSPS_ASSIGN_OR_RETURN(impl.control, ControlFile::Create(path + "/group", uuid));
  return group;
}

Result<std::shared_ptr<Group>> Group::Open(const std::string& path) {
  TSPS_RETURN_IF_ERROR(CheckPrivateDirectory(path));
  std::shared_ptr<Group> group(new Group());
  group->path_ = path;
  Impl& impl = *group->impl_;
  TSPS_ASSIGN_OR_RETURN(impl.control, ControlFile::Open(path + "/group"));
  TSPS_ASSIGN_OR_RETURN(impl.undo, UndoLog::Open(path + "/undo"));
  TSPS_ASSIGN_OR_RETURN(impl.probe, WriterProbe::Open(path + "/writer.lock"));
  // Maps the tables that are there.
  TSPS_RETURN_IF_ERROR(group->Read([](const Snapshot&) { return Status(); }));
  return group;
}

Status Group::Read(const std::function<Status(const Snapshot&)>& read, double timeout_s) {
  const ControlFile& control = *impl_->control;
  const uint64_t deadline = NowNs() + static_cast<uint64_t>(timeout_s * 1e9);
  State state;
  uint64_t blocked = 0;
  uint64_t blocked_by_growth = 0;
  // What a wait or a lost attempt cost, and whether growth was the cause.
  const auto count = [&](uint64_t cost) {
    blocked += cost;
    if (control.live().growing.load(std::memory_order_relaxed) != 0) blocked_by_growth += cost;
    counters_.read_retries.fetch_add(1, std::memory_order_relaxed);
  };
  while (true) {
    if (NowNs() > deadline) {
      return Error(Code::kUnavailable, "no consistent read of ", path_, " within ", timeout_s,
                   " s: its writer (pid ", control.live().writer_pid.load(),
                   ") is changing it all the time");
    }
    const uint64_t sequence = control.sequence();
    std::shared_ptr<const Overlay> overlay;
    if ((sequence & 1) != 0 && !TSPS_FAULT_OFF("seqlock")) {
      if (impl_->probe->WriterAlive()) {
        const uint64_t began = NowNs();
        control.AwaitChange(sequence, 1);
        count(NowNs() - began);
        continue;
      }
      if (!control.Validate(sequence)) continue;
      auto behind = impl_->OverlayFor(sequence);
      if (!behind.ok()) {
        // A recovery may have begun the next mutation while we read its log.
        if (!control.Validate(sequence)) continue;
        return behind.status();
      }
      overlay = *behind;
    }
    const uint64_t began = ThreadNs();
    control.LoadState(sequence / 2, &state);
    if (control.Validate(sequence)) {
      Status status = impl_->MapTables(path_, state);
      if (status.ok()) {
        const Snapshot snapshot(*this, state, overlay.get());
        status = read(snapshot);
        if (!snapshot.unmapped_.ok()) status = snapshot.unmapped_;
      }
      if (control.Validate(sequence)) {
        RaiseMax(counters_.read_blocked_ns_max, blocked);
        RaiseMax(counters_.growth_blocked_ns_max, blocked_by_growth);
        return status;
      }
    }
    count(ThreadNs() - began);
  }
}

uint64_t Group::step() const { return impl_->control->CommittedStep(); }

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
      if (!impl_->probe->WriterAlive() && control.CommittedStep() < step) {
        return Error(Code::kUnavailable, "the leader (pid ", control.live().writer_pid.load(),
                     ") of ", path_, " died: step ", control.CommittedStep(), " is its last, step ",
                     step, " was awaited");
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
  info.writer_alive = impl_->probe->WriterAlive();
  info.unfinished = (sequence & 1) != 0;
  info.bytes = impl_->control->file().RefreshSize() + impl_->undo->file().RefreshSize();
  const size_t mapped = static_cast<size_t>(table_count());
  for (size_t t = 0; t < std::min(mapped, state.tables.size()); ++t) {
    info.bytes += impl_->files(static_cast<int>(t))->Bytes(state.tables[t]);
  }
  return info;
}

Status Group::CheckInPlace() const { return impl_->control->file().CheckInPlace(); }

int Group::table_count() const { return impl_->n_tables.load(std::memory_order_acquire); }

Result<int> Group::FindTable(const std::string& name) {
  // The committed tables only: the writer of this process lists a table before it commits it.
  // Reading also maps those that another process has made since we last looked.
  int committed = 0;
  TSPS_RETURN_IF_ERROR(Read([&](const Snapshot& snapshot) {
    committed = snapshot.table_count();
    return Status();
  }));
  for (int t = 0; t < committed; ++t) {
    if (config(t).name == name) return t;
  }
  return Error(Code::kNotFound, "no table '", name, "' in ", path_);
}

const TableConfig& Group::config(int table) const { return impl_->files(table)->config(); }

Status Group::CheckUuid(int table, const std::string& uuid) const {
  const TableConfig& known = config(table);
  if (uuid.empty() || uuid == known.uuid) return Status();
  return Error(Code::kFailedPrecondition, "table ", path_, "/", known.name, " has uuid ",
               known.uuid, ", not ", uuid,
               ": it is another table than the one this layer was built with");
}

Status Group::CheckKeys(int table, const int64_t* keys, size_t n) const {
  const TableConfig& known = config(table);
  if (known.key_limit <= 0) return Status();
  const auto limit = static_cast<uint64_t>(known.key_limit);
  uint64_t bad = 0;  // without a branch per key, so that it vectorises
  for (size_t i = 0; i < n; ++i)
    bad |= static_cast<uint64_t>(static_cast<uint64_t>(keys[i]) >= limit);
  if (bad == 0) return Status();
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<uint64_t>(keys[i]) >= limit) {
      return Error(Code::kOutOfRange, "table ", known.name, ": key ", keys[i], " at position ", i,
                   " is not in [0, ", known.key_limit, ")");
    }
  }
  return Status();
}

}  // namespace tsps
