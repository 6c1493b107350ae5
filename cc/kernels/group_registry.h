// The groups this process has open, by path.
//
// The op library, unlike the core, may own process state: ops get a path and a uuid, and this maps
// them to one Group (one mapping, one writer) per process.
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
#include "core/wire/wire_buffers.h"
#include "kernels/row_pulls.h"
#include "kernels/tensors.h"

namespace tsps {

// A group and, in one process of the node, its writer.
class OpenGroup {
 public:
  explicit OpenGroup(std::shared_ptr<Group> group);

  Group& group() const { return *group_; }

  // Takes the writer lock; no error when this process has it already. `outcome`: see
  // Group::OpenWriter.
  Status BecomeWriter(Undecided outcome = Undecided::kRefuse);
  // Runs `write` with the writer, one caller at a time, and when no step is prepared: Unavailable
  // if one is for half a minute. FailedPrecondition in any other process.
  Status Write(const std::function<Status(GroupWriter&)>& write);
  // Steps that other nodes have a say in. `prepare` prepares one; `held` is what it points to, kept
  // until it is decided. One that never was is dropped before. With several `voters`, groups that
  // make the step together or not at all, it is written and sealed, too: only all of them decide
  // it, and nothing can be prepared until they have (FailedPrecondition).
  Status Prepare(const std::function<Status(GroupWriter&)>& prepare, std::shared_ptr<void> held,
                 uint32_t voters);
  // Makes the step that is prepared, or drops it; no error in a process that is not the writer.
  // Calls `certain` before a step is made: nothing can fail from there on.
  Status Decide(bool make, const std::function<void()>& certain);
  // Makes this process a rank of the node's exchange (NodeExchange::Create), once.
  Status JoinExchange(const std::string& folder, const NodeExchange::Options& options);
  // Runs `use` with the exchange, one caller at a time. FailedPrecondition before JoinExchange.
  Status WithExchange(const std::function<Status(NodeExchange&)>& use);
  // Null before JoinExchange. For what is thread-safe beside WithExchange.
  std::shared_ptr<NodeExchange> exchange();
  // What a round of the exchange has received; its memory is kept. Only inside WithExchange.
  WireBuffers& received() { return received_; }
  // Rows of sharded tables, from other nodes.
  RowPulls& pulls() { return pulls_; }
  // Look-ups of a step that fail may leave their error here: then this rank comes to the step as
  // the others do, and all refuse it. Off, unless AllowObjections: they fail at once.
  void AllowObjections(bool allowed) { objects_.store(allowed, std::memory_order_relaxed); }
  // True if the error is kept for the next step. The first one counts.
  bool Object(const Status& error);
  // The error that was kept, once.
  Status TakeObjection();
  // Tells the other ranks of the node, if it has joined them, which step this process is making.
  void ShowStep(int64_t step);
  // Gives up the writer lock and ends waits. Handles that ops still hold can go on reading.
  void Close();
  // Set by Close(); what waits looks at it.
  const std::atomic<bool>& closed() const { return closed_; }

 private:
  const std::shared_ptr<Group> group_;
  std::atomic<bool> closed_{false};
  Status CheckWriter() const;  // under writer_mutex_

  std::mutex writer_mutex_;
  std::condition_variable decided_;
  std::shared_ptr<void> prepared_;       // what the writer's prepared step points to
  std::unique_ptr<GroupWriter> writer_;  // after group_ and prepared_: destroyed first
  std::mutex exchange_mutex_;            // while it is used
  std::mutex exchange_pointer_mutex_;
  std::shared_ptr<NodeExchange> exchange_;
  WireBuffers received_;
  RowPulls pulls_;
  std::atomic<bool> objects_{false}, has_objection_{false};
  std::mutex objection_mutex_;
  Status objection_;
};

struct TableHandle {
  std::shared_ptr<OpenGroup> owner;
  int table = 0;
  std::shared_ptr<const TableConfig> known;  // what it is, or was: the handle keeps no mapping

  static Result<TableHandle> Of(std::shared_ptr<OpenGroup> owner, int table);
  Group& group() const { return owner->group(); }
  const TableConfig& config() const { return *known; }
  std::string path() const { return group().path() + "/" + config().name; }
};

// Thread-safe.
class GroupRegistry {
 public:
  // Never destroyed: at exit, TensorFlow's threads may still run kernels. Writer locks are given up
  // and waits are ended when the library is unloaded or the process exits.
  static GroupRegistry& Get();

  Result<std::shared_ptr<OpenGroup>> Open(const std::string& path);
  // Also takes the writer lock. Replaces a handle of a group that was there before.
  Result<std::shared_ptr<OpenGroup>> Create(const std::string& path, const std::string& uuid,
                                            const GroupDraw& draw);
  // `path` is <group>/<table>; `uuid` "" accepts any. A handle whose directory was replaced since
  // is opened anew.
  Result<TableHandle> OpenTable(const std::string& path, const std::string& uuid);
  // Removes a table, whose writer this process is, and its files.
  Status RemoveTable(const std::string& path, const std::string& uuid);
  // Unmaps a table: nobody in this process needs it. Not in the writer's process, and no error when
  // it is not open.
  void Forget(const std::string& path);
  // No error when the path is not open.
  void Close(const std::string& path);
  void CloseAll();
  // By this process, in all groups that it has open.
  uint64_t steps_applied();
  // Changes whenever a cached handle may have become wrong.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  // Under mutex_. `fresh`: even if there is a handle.
  Result<std::shared_ptr<OpenGroup>> OpenLocked(const std::string& path, bool fresh);
  void CloseLocked(const std::string& path);

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<OpenGroup>> groups_;
  std::atomic<uint64_t> generation_{1};
};

// The last component of a path, and what is before it; absolute, without "." and "//".
struct SplitPath {
  std::string parent;
  std::string name;
};
std::string AbsolutePath(const std::string& path);
SplitPath SplitTablePath(const std::string& path);

// What a kernel instance remembers between calls: the tables its paths and uuids last named, so
// that the hot path compares strings and takes no lock of the registry. Thread-safe.
class TableCache {
 public:
  using Tables = std::shared_ptr<const std::vector<TableHandle>>;

  // Reads `n` paths from input `paths` on and `n` uuids from input `uuids` on. All tables are of
  // one group: InvalidArgument naming two otherwise.
  Result<Tables> Resolve(const KernelContext& context, int paths, int uuids, int n);

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
