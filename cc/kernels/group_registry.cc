#include "kernels/group_registry.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/fault_point.h"
#include "core/os/absolute_path.h"
#include "kernels/file_tables.h"
#include "kernels/served_tables.h"

namespace tsps {
namespace {

// The longest time for which a write waits until a prepared step is decided.
constexpr std::chrono::seconds kDecisionTime{30};

// Closes all groups at exit, which ends the waits of threads. (Writer locks end with the process
// anyway.) It runs before the exit handlers of TensorFlow, whose library was loaded first. A forked
// child owns none of the groups.
struct CloseAtExit {
  const pid_t creator = getpid();
  ~CloseAtExit() {
    if (getpid() == creator) GroupRegistry::Get().CloseAll();
  }
};
const CloseAtExit close_at_exit;

}  // namespace

SplitPath SplitTablePath(const std::string& path) {
  const std::string absolute = AbsolutePath(path);
  const size_t slash = absolute.rfind('/');
  return {absolute.substr(0, std::max<size_t>(slash, 1)), absolute.substr(slash + 1)};
}

// --- OpenGroup ---

OpenGroup::OpenGroup(std::shared_ptr<Group> group) : group_(std::move(group)) {}

Status OpenGroup::BecomeWriter(Undecided outcome) {
  std::lock_guard<std::mutex> lock(writer_mutex_);
  if (writer_ != nullptr) return Status();
  TSPS_ASSIGN_OR_RETURN(writer_, group_->OpenWriter(outcome));
  return Status();
}

Status OpenGroup::CheckWriter() const {
  if (writer_ != nullptr) return Status();
  const GroupInfo info = group_->Info();
  return Error(Code::kFailedPrecondition, "this process is not the writer of group ",
               group_->path(), "; process ", info.writer_pid,
               info.writer_alive ? " is" : " was, and has ended",
               ". Nothing was written. Run the op in the process that ran TspsCreateGroup or "
               "TspsOpenWriter");
}

Status OpenGroup::Write(const std::function<Status(GroupWriter&)>& write) {
  std::unique_lock<std::mutex> lock(writer_mutex_);
  TSPS_RETURN_IF_ERROR(CheckWriter());
  if (!decided_.wait_for(lock, kDecisionTime, [&] { return prepared_ == nullptr; })) {
    return Error(Code::kUnavailable, "a prepared step of group ", group_->path(),
                 " was not decided within ", kDecisionTime.count(),
                 " s. Nothing else was written meanwhile. Check whether another node of the job "
                 "has stopped");
  }
  TSPS_RETURN_IF_ERROR(CheckWriter());  // the group may have been closed meanwhile
  return write(*writer_);
}

Status OpenGroup::Prepare(const std::function<Status(GroupWriter&)>& prepare,
                          std::shared_ptr<void> held, uint32_t voters) {
  std::lock_guard<std::mutex> lock(writer_mutex_);
  TSPS_RETURN_IF_ERROR(CheckWriter());
  if (writer_->sealed()) {
    return Error(
        Code::kFailedPrecondition, "step ", group_->step() + 1, " of group ", group_->path(),
        " is written, but the vote on it failed, so this node does not know whether the other "
        "nodes made it. No further step can be made. End the job. A named job (TFSPS_JOB) settles "
        "the step when it starts again");
  }
  writer_->Abort();
  prepared_.reset();
  TSPS_RETURN_IF_ERROR(prepare(*writer_));
  prepared_ = std::move(held);
  if (voters > 1) {
    writer_->Write();
    writer_->Seal({group_->step() + 1, group_->run_id(), voters});
    TSPS_FAULT_POINT("vote.sealed");
    // A control for tests: each node decides alone.
    if (TSPS_FAULT_OFF("vote")) writer_->Publish();
  }
  return Status();
}

Status OpenGroup::Decide(bool make, const std::function<void()>& report) {
  std::lock_guard<std::mutex> lock(writer_mutex_);
  if (writer_ == nullptr) return Status();
  if (make && prepared_ == nullptr) {
    return Error(Code::kFailedPrecondition, "no step of group ", group_->path(), " is prepared");
  }
  if (make) {
    report();
    TSPS_FAULT_POINT("vote.decided");
    if (!TSPS_FAULT_OFF("vote")) writer_->Publish();
  } else {
    writer_->Abort();
  }
  prepared_.reset();
  decided_.notify_all();
  return Status();
}

bool OpenGroup::Object(const Status& error) {
  if (!objects_.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(objection_mutex_);
  if (objection_.ok()) objection_ = error;
  has_objection_.store(true, std::memory_order_release);
  return true;
}

Status OpenGroup::TakeObjection() {
  if (!has_objection_.load(std::memory_order_acquire)) return Status();
  std::lock_guard<std::mutex> lock(objection_mutex_);
  has_objection_.store(false, std::memory_order_relaxed);
  return std::exchange(objection_, Status());
}

Status OpenGroup::JoinExchange(const std::string& folder, const NodeExchange::Options& options) {
  std::lock_guard<std::mutex> lock(exchange_mutex_);
  if (exchange() != nullptr) {
    return Error(Code::kFailedPrecondition,
                 "this process has already joined the exchange of group ", group_->path());
  }
  TSPS_ASSIGN_OR_RETURN(std::shared_ptr<NodeExchange> joined,
                        NodeExchange::Create(folder, options));
  joined->SetStep(static_cast<int64_t>(group_->step()));
  pulls_.Join(folder, options);
  std::lock_guard<std::mutex> pointer_lock(exchange_pointer_mutex_);
  exchange_ = std::move(joined);
  return Status();
}

Status OpenGroup::WithExchange(const std::function<Status(NodeExchange&)>& use) {
  std::lock_guard<std::mutex> lock(exchange_mutex_);
  const std::shared_ptr<NodeExchange> joined = exchange();
  if (joined == nullptr) {
    return Error(Code::kFailedPrecondition, "this process has ",
                 closed_.load() ? "closed" : "not joined the exchange of", " group ",
                 group_->path(), ". Run TspsJoinExchange first");
  }
  return use(*joined);
}

std::shared_ptr<NodeExchange> OpenGroup::exchange() {
  std::lock_guard<std::mutex> lock(exchange_pointer_mutex_);
  return exchange_;
}

void OpenGroup::ShowStep(int64_t step) {
  counter_page_.Show(*this);
  const std::unique_lock<std::mutex> lock(exchange_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  if (const std::shared_ptr<NodeExchange> joined = exchange()) joined->SetStep(step);
}

void OpenGroup::Close() {
  closed_.store(true, std::memory_order_release);
  pulls_.Close();
  {
    std::lock_guard<std::mutex> lock(exchange_mutex_);
    std::lock_guard<std::mutex> pointer_lock(exchange_pointer_mutex_);
    exchange_.reset();
  }
  std::lock_guard<std::mutex> lock(writer_mutex_);
  writer_.reset();
  prepared_.reset();
  decided_.notify_all();
}

Result<TableHandle> TableHandle::Of(std::shared_ptr<OpenGroup> owner, int table) {
  TSPS_ASSIGN_OR_RETURN(auto known, owner->group().Config(table));
  return TableHandle{std::move(owner), table, std::move(known), nullptr};
}

// --- GroupRegistry ---

GroupRegistry& GroupRegistry::Get() {
  static GroupRegistry* const registry = new GroupRegistry;
  return *registry;
}

Result<std::shared_ptr<OpenGroup>> GroupRegistry::OpenLocked(const std::string& path, bool fresh) {
  if (!fresh) {
    const auto entry = groups_.find(path);
    if (entry != groups_.end()) return entry->second;
  }
  TSPS_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, Group::Open(path));
  CloseLocked(path);
  auto opened = std::make_shared<OpenGroup>(std::move(group));
  groups_[path] = opened;
  return opened;
}

void GroupRegistry::CloseLocked(const std::string& path) {
  const auto entry = groups_.find(path);
  if (entry == groups_.end()) return;
  entry->second->Close();
  groups_.erase(entry);
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

Result<std::shared_ptr<OpenGroup>> GroupRegistry::Open(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex_);
  return OpenLocked(AbsolutePath(path), false);
}

Result<std::shared_ptr<OpenGroup>> GroupRegistry::Create(const std::string& path,
                                                         const std::string& uuid,
                                                         const GroupDraw& draw) {
  const std::string absolute = AbsolutePath(path);
  std::lock_guard<std::mutex> lock(mutex_);
  TSPS_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, Group::Create(absolute, uuid, draw));
  CloseLocked(absolute);
  auto created = std::make_shared<OpenGroup>(std::move(group));
  groups_[absolute] = created;
  TSPS_RETURN_IF_ERROR(created->BecomeWriter());
  return created;
}

Result<TableHandle> GroupRegistry::OpenTable(const std::string& path, const std::string& uuid) {
  const SplitPath split = SplitTablePath(path);
  std::shared_ptr<OpenGroup> owner;
  bool cached = false;
  const auto open = [&](bool fresh) -> Status {
    std::lock_guard<std::mutex> lock(mutex_);
    cached = groups_.count(split.parent) > 0;
    TSPS_ASSIGN_OR_RETURN(owner, OpenLocked(split.parent, fresh));
    return Status();
  };
  // Runs without the lock: while a step waits for the votes of other nodes, no thread can read the
  // group, and the thread that decides the step needs the lock.
  const auto find = [&]() -> Result<TableHandle> {
    TSPS_ASSIGN_OR_RETURN(const int table, owner->group().FindTable(split.name));
    TSPS_RETURN_IF_ERROR(owner->group().CheckUuid(table, uuid));
    return TableHandle::Of(owner, table);
  };
  TSPS_RETURN_IF_ERROR(open(false));
  Result<TableHandle> table = find();
  // Another job may have removed the directory and created it again since it was opened here.
  if (table.ok() || !cached || owner->group().CheckInPlace().ok()) return table;
  TSPS_RETURN_IF_ERROR(open(true));
  return find();
}

Status GroupRegistry::RemoveTable(const std::string& path, const std::string& uuid) {
  TSPS_ASSIGN_OR_RETURN(const TableHandle table, OpenTable(path, uuid));
  TSPS_RETURN_IF_ERROR(
      table.owner->Write([&](GroupWriter& writer) { return writer.RemoveTable(table.table); }));
  generation_.fetch_add(1, std::memory_order_acq_rel);
  return Status();
}

void GroupRegistry::Forget(const std::string& path) {
  const SplitPath split = SplitTablePath(path);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = groups_.find(split.parent);
  if (entry != groups_.end()) entry->second->group().Forget(split.name);
}

void GroupRegistry::Close(const std::string& path) {
  const std::string absolute = AbsolutePath(path);
  std::lock_guard<std::mutex> lock(mutex_);
  CloseLocked(absolute);
}

uint64_t GroupRegistry::steps_applied() {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t steps = 0;
  for (const auto& [path, owner] : groups_) {
    steps += owner->group().counters().steps_applied.load(std::memory_order_relaxed);
  }
  return steps;
}

void GroupRegistry::CloseAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!groups_.empty()) CloseLocked(std::string(groups_.begin()->first));
}

// --- TableCache ---

Result<TableCache::Tables> TableCache::Resolve(const KernelContext& context, int paths, int uuids,
                                               int n, bool accept_served) {
  std::shared_ptr<const Entry> entry;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    entry = entry_;
  }
  GroupRegistry& registry = GroupRegistry::Get();
  const uint64_t generation = registry.generation();
  bool current = entry != nullptr && entry->generation == generation;
  auto fresh = std::make_shared<Entry>();
  fresh->generation = generation;
  for (int t = 0; t < n; ++t) {
    TSPS_ASSIGN_OR_RETURN(const Tensor path, context.Input(paths + t, 0, "paths"));
    TSPS_ASSIGN_OR_RETURN(const Tensor uuid, context.Input(uuids + t, 0, "uuids"));
    const size_t i = static_cast<size_t>(t);
    current = current && entry->paths[i] == path.string() && entry->uuids[i] == uuid.string();
    if (current) continue;
    // This is the first difference: the paths and uuids before it are those of the entry.
    for (size_t k = fresh->paths.size(); k < i; ++k) {
      fresh->paths.push_back(entry->paths[k]);
      fresh->uuids.push_back(entry->uuids[k]);
    }
    fresh->paths.emplace_back(path.string());
    fresh->uuids.emplace_back(uuid.string());
  }
  if (current) return entry->tables;

  auto tables = std::make_shared<std::vector<TableHandle>>();
  const TableSource source =
      fresh->paths.empty() ? TableSource::kGroup : SourceOf(fresh->paths.front());
  if (source == TableSource::kParameterFile) {
    TSPS_ASSIGN_OR_RETURN(*tables, OpenParameterFiles(fresh->paths));
  } else if (source == TableSource::kServed) {
    if (!accept_served) {
      return Error(Code::kFailedPrecondition, fresh->paths.front(),
                   " is a table of a served version, which cannot be trained. Train the model "
                   "that it was exported from");
    }
    TSPS_ASSIGN_OR_RETURN(*tables, OpenServedTables(fresh->paths));
  }
  for (size_t i = 0; source == TableSource::kGroup && i < fresh->paths.size(); ++i) {
    TSPS_ASSIGN_OR_RETURN(TableHandle table, registry.OpenTable(fresh->paths[i], fresh->uuids[i]));
    if (!tables->empty() && table.owner != tables->front().owner) {
      return Error(Code::kInvalidArgument,
                   "the tables of a call must be of one group. Received: ", fresh->paths.front(),
                   " and ", fresh->paths[i]);
    }
    tables->push_back(std::move(table));
  }
  fresh->tables = std::move(tables);
  std::lock_guard<std::mutex> lock(mutex_);
  entry_ = fresh;
  return fresh->tables;
}

}  // namespace tsps
