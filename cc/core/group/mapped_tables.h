// MappedTables: the tables of a group that this process has mapped.
//
// A table is mapped when this process first needs it, and unmapped when it was removed or this
// process no longer needs it. A reader keeps the list that it has taken while it reads. A table
// that is dropped meanwhile is unmapped when the last reader releases the list.
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

// A table in a place of the group.
struct MappedTable {
  std::shared_ptr<TableFiles> files;  // null: not mapped
  uint64_t removed = 0;               // number of earlier tables of this place

  bool Is(uint64_t removed_before) const { return files != nullptr && removed == removed_before; }
};

// Thread-safe, except for the writer's methods.
class MappedTables {
 public:
  using List = std::vector<MappedTable>;  // by place

  std::shared_ptr<const List> list() const { return std::atomic_load(&list_); }
  // Returns the files of the table in a place of the control file's committed state, after checks.
  // DataLoss: they are missing or damaged.
  static Result<std::shared_ptr<TableFiles>> Open(const std::string& group_path,
                                                  ControlFile& control, size_t place,
                                                  const TableState& table);
  // Maps the tables in these places of a committed state that are not mapped yet.
  Status Map(const std::string& group_path, ControlFile& control, const State& state,
             const std::vector<size_t>& places);
  // Drops tables that a committed state no longer has, and tables with mapped slots of a former
  // optimizer, which are then mapped again without them. Does nothing in the writer's process; the
  // writer drops tables itself.
  void DropRemoved(const State& state);
  // Drops the table of this name. If it is needed again, it is mapped again. Does nothing in the
  // writer's process.
  void Forget(const std::string& name);

  // --- For the writer. ---
  // Until Disown(), only the writer drops tables. It has all of them mapped.
  void Own();
  void Disown();
  bool owned() const { return owned_; }
  // Returns the files in a place; null if none are mapped.
  TableFiles* files(size_t place) const;
  // Put replaces the table of a place, Drop removes it.
  void Put(size_t place, uint64_t removed, std::shared_ptr<TableFiles> files);
  void Drop(size_t place);

 private:
  // Called with mutex_.
  std::shared_ptr<List> Copy() const { return std::make_shared<List>(*list_); }
  void Set(std::shared_ptr<List> list) {
    std::atomic_store(&list_, std::shared_ptr<const List>(std::move(list)));
  }

  std::mutex mutex_;  // protects changes of the list
  std::shared_ptr<const List> list_ = std::make_shared<List>();
  std::atomic<bool> owned_{false};
  std::atomic<uint64_t> looked_at_{0};  // the version of DropRemoved's last state
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_MAPPED_TABLES_H_
