// MappedTables: which tables of a group this process has mapped.
//
// A table is mapped when somebody first needs it, and unmapped when it has been removed or nobody
// here needs it any more. A reader takes the list as it is and keeps it while it reads: what is
// dropped meanwhile is unmapped when the last reader lets the list go.
#ifndef TFSPS_CORE_GROUP_MAPPED_TABLES_H_
#define TFSPS_CORE_GROUP_MAPPED_TABLES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/table/table_files.h"

namespace tsps {

struct MappedTable {
  std::shared_ptr<TableFiles> files;  // null: not mapped
  uint64_t removed = 0;               // tables that were in this place before it

  bool Is(uint64_t removed_before) const { return files != nullptr && removed == removed_before; }
};

// Thread-safe, but for the writer's methods.
class MappedTables {
 public:
  using List = std::vector<MappedTable>;  // by place

  std::shared_ptr<const List> list() const { return std::atomic_load(&list_); }
  // The files of the table in a place of the control file's committed state, checked. DataLoss when
  // they are not there.
  static Result<std::shared_ptr<TableFiles>> Open(const std::string& group_path,
                                                  ControlFile& control, size_t place,
                                                  const TableState& table);
  // Maps the tables in these places of a committed state, unless they are mapped.
  Status Map(const std::string& group_path, ControlFile& control, const State& state,
             const std::vector<size_t>& places);
  // Drops what a committed state no longer has: tables, and those of which slots of a former
  // optimizer are mapped, to be mapped again without them. Nothing in the writer's process, which
  // does so itself.
  void DropRemoved(const State& state);
  // Drops the table of this name, for whoever needs it again to map it again. Not in the writer's
  // process.
  void Forget(const std::string& name);

  // --- The writer. ---
  // From now on, until Disown(), only the writer drops tables. It has all of them mapped.
  void Own();
  void Disown();
  bool owned() const { return owned_; }
  // The files in a place; null: none are mapped.
  TableFiles* files(size_t place) const;
  void Put(size_t place, uint64_t removed, std::shared_ptr<TableFiles> files);
  void Drop(size_t place);

 private:
  // Under mutex_.
  std::shared_ptr<List> Copy() const { return std::make_shared<List>(*list_); }
  void Set(std::shared_ptr<List> list) {
    std::atomic_store(&list_, std::shared_ptr<const List>(std::move(list)));
  }

  std::mutex mutex_;  // of who changes the list
  std::shared_ptr<const List> list_ = std::make_shared<List>();
  std::atomic<bool> owned_{false};
  std::atomic<uint64_t> looked_at_{0};  // the version of the state that DropRemoved saw last
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_MAPPED_TABLES_H_
