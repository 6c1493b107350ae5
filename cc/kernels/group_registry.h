// GroupRegistry: the groups that this process has open, by path.
//
// Ops get paths and uuids. The registry maps them to one Group per process, with one mapping and
// one writer. The op library may own state of the process; the core may not.
#ifndef TFSPS_KERNELS_GROUP_REGISTRY_H_
#define TFSPS_KERNELS_GROUP_REGISTRY_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/exchange/node_exchange.h"
#include "core/group/group.h"
#include "core/serving/serving_table.h"
#include "core/wire/wire_buffers.h"
#include "kernels/counter_page.h"
#include "kernels/row_pulls.h"
#include "kernels/tensors.h"

namespace tsps {

// An open group and, in one process of the node, its writer.
class OpenGroup {
 public:
  explicit OpenGroup(std::shared_ptr<Group> group);

  Group& group() const { return *group_; }

  // Acquires the writer lock. Does nothing if this process has it already. `outcome`: see
  // Group::OpenWriter.
  Status BecomeWriter(Undecided outcome = Undecided::kRefuse);
  // Runs `write` with the writer, one caller at a time, when no step is prepared. Unavailable: a
  // step stayed prepared for half a minute. FailedPrecondition: this process is not the writer.
  Status Write(const std::function<Status(GroupWriter&)>& write);
  // Prepares a step that several nodes decide about. `prepare` prepares it; `held` owns the data
  // that it points to, and is kept until the decision. Drops an earlier step that was not decided.
  // `voters` is the number of groups that make the step together or not at all. If there are
  // several, also writes and seals the step. Then only all groups together can decide it, and until
  // then Prepare returns FailedPrecondition.
  Status Prepare(const std::function<Status(GroupWriter&)>& prepare, std::shared_ptr<void> held,
                 uint32_t voters);
  // Makes the prepared step, or drops it. Does nothing in a process that is not the writer. Calls
  // `report` before it makes the step, when nothing can fail any more.
  Status Decide(bool make, const std::function<void()>& report);
  // Makes this process a rank of the node's exchange (NodeExchange::Create), once.
  Status JoinExchange(const std::string& folder, const NodeExchange::Options& options);
  // Runs `use` with the exchange, one caller at a time. FailedPrecondition before JoinExchange.
  Status WithExchange(const std::function<Status(NodeExchange&)>& use);
  // Returns the exchange, or null before JoinExchange. Use only its thread-safe methods outside of
  // WithExchange.
  std::shared_ptr<NodeExchange> exchange();
  // Returns the buffers for what a round of the exchange receives. Their memory is reused. Only
  // inside WithExchange.
  WireBuffers& received() { return received_; }
  // Returns the pulls of rows of sharded tables from other nodes.
  RowPulls& pulls() { return pulls_; }
  // Sets whether a failed lookup of a training step may keep its error here. If so, this rank
  // reaches the step like the other ranks, and all ranks refuse it. Otherwise, which is the
  // default, the lookup itself fails.
  void AllowObjections(bool allowed) { objects_.store(allowed, std::memory_order_relaxed); }
  // Keeps an error for the next step, unless one is kept already. Returns whether objections are
  // allowed.
  bool Object(const Status& error);
  // Returns the error that was kept, and forgets it.
  Status TakeObjection();
  // Publishes the step that this process is making to the other ranks of the node, if it has joined
  // their exchange.
  void ShowStep(int64_t step);
  // Returns the page that shows the counters of this process.
  CounterPage& counter_page() { return counter_page_; }
  // Releases the writer lock and ends waits. Handles that ops still have can read on.
  void Close();
  // Set by Close(). Waits poll it.
  const std::atomic<bool>& closed() const { return closed_; }

 private:
  const std::shared_ptr<Group> group_;
  std::atomic<bool> closed_{false};
  Status CheckWriter() const;  // under writer_mutex_

  std::mutex writer_mutex_;
  std::condition_variable decided_;
  std::shared_ptr<void> prepared_;       // owns the data of the writer's prepared step
  std::unique_ptr<GroupWriter> writer_;  // destroyed before group_ and prepared_
  std::mutex exchange_mutex_;            // locked while the exchange is in use
  std::mutex exchange_pointer_mutex_;
  std::shared_ptr<NodeExchange> exchange_;
  WireBuffers received_;
  RowPulls pulls_;
  CounterPage counter_page_;
  std::atomic<bool> objects_{false}, has_objection_{false};
  std::mutex objection_mutex_;
  Status objection_;
};

// A table of an open group, or of a served version. A handle keeps no mapping of a group.
struct TableHandle {
  std::shared_ptr<OpenGroup> owner;  // null: the table is served
  int table = 0;
  std::shared_ptr<const TableConfig> known;    // the configuration, also after the table's removal
  std::shared_ptr<const ServingTable> served;  // null: the table is in a group

  static Result<TableHandle> Of(std::shared_ptr<OpenGroup> owner, int table);
  Group& group() const { return owner->group(); }
  const TableConfig& config() const { return *known; }
  std::string path() const {
    return served != nullptr ? served->path() : group().path() + "/" + config().name;
  }
};

// Shows the counters of this process, if the tables are in a group.
inline void ShowCounters(const std::vector<TableHandle>& tables) {
  if (OpenGroup* const owner = tables.front().owner.get()) owner->counter_page().Show(*owner);
}

// Thread-safe.
class GroupRegistry {
 public:
  // Returns the registry, which is never destroyed, because TensorFlow's threads may still run
  // kernels at exit. When the library is unloaded or the process exits, all groups are closed.
  static GroupRegistry& Get();

  Result<std::shared_ptr<OpenGroup>> Open(const std::string& path);
  // Creates a group and acquires its writer lock. Replaces a group that was open under this path.
  Result<std::shared_ptr<OpenGroup>> Create(const std::string& path, const std::string& uuid,
                                            const GroupDraw& draw);
  // Returns the table with the path <group>/<table>. `uuid` "" matches any. Opens the group again
  // if its directory was replaced since it was opened.
  Result<TableHandle> OpenTable(const std::string& path, const std::string& uuid);
  // Removes a table and its files. This process must be the writer.
  Status RemoveTable(const std::string& path, const std::string& uuid);
  // Unmaps a table that this process does not need any more. Does nothing in the writer's process,
  // or if the group is not open.
  void Forget(const std::string& path);
  // Closes a group. Does nothing if it is not open.
  void Close(const std::string& path);
  void CloseAll();
  // Returns the number of steps that this process has applied to all groups that it has open.
  uint64_t steps_applied();
  // Returns a number that changes whenever a cached handle may have become invalid.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  // Called with mutex_. `fresh`: whether to open the group again if it is open.
  Result<std::shared_ptr<OpenGroup>> OpenLocked(const std::string& path, bool fresh);
  void CloseLocked(const std::string& path);

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<OpenGroup>> groups_;
  std::atomic<uint64_t> generation_{1};
};

// The parent and the last component of a path; the parent is absolute, without "." and "//".
struct SplitPath {
  std::string parent;
  std::string name;
};
SplitPath SplitTablePath(const std::string& path);

// The tables of a kernel's last call. The next call compares its paths and uuids with theirs, and
// takes no lock of the registry if they are equal. Thread-safe.
class TableCache {
 public:
  using Tables = std::shared_ptr<const std::vector<TableHandle>>;

  // Reads `n` paths from input `paths` on and `n` uuids from input `uuids` on. InvalidArgument,
  // naming two tables: they are not all of one group. FailedPrecondition: a table is served, and
  // the caller does not accept that.
  Result<Tables> Resolve(const KernelContext& context, int paths, int uuids, int n,
                         bool accept_served = false);

 private:
  struct Entry {
    uint64_t generation;
    std::vector<std::string> paths, uuids;
    Tables tables;
  };
  std::mutex mutex_;
  std::shared_ptr<const Entry> entry_;
};

}  // namespace tsps

#endif  // TFSPS_KERNELS_GROUP_REGISTRY_H_
