// TableFiles: the files of one table, mapped in this process.
//
//   config, directory, segments, free, erased, planes.<generation>, plane.<name>.<generation>
//   (layout.h)
#ifndef TFSPS_CORE_TABLE_TABLE_FILES_H_
#define TFSPS_CORE_TABLE_TABLE_FILES_H_

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"
#include "core/table/index.h"
#include "core/table/layout.h"
#include "core/table/planes.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"
#include "core/table/tiered_storage.h"

namespace tsps {

// Methods for the writer are marked "Writer:". The others are thread-safe, also during its
// mutations; the caller validates what it reads of the mapped memory.
class TableFiles {
 public:
  static constexpr uint32_t kFirstGeneration = 1;  // of lists of planes

  // Creates the folder of a table and its files. Removes what a killed creation under the same name
  // left.
  static Result<std::unique_ptr<TableFiles>> Create(const std::string& folder,
                                                    const TableConfig& config, uint64_t index_seed);
  // Maps an existing table read-only. CheckState maps its planes.
  static Result<std::unique_ptr<TableFiles>> Open(const std::string& folder);

  // Writer: makes all mappings writable, those of the planes of a committed state included.
  Status MakeWritable(const TableState& state);
  // Checks the numbers of a committed state, and that its files can be mapped and are long enough.
  Status CheckState(const TableState& state);
  // Checks that the files of the index, and the planes of the state's binding, are as long as a
  // committed state needs. ResourceExhausted: since this process opened the table, another process
  // has grown it beyond this process's address range. DataLoss: a file is shorter, or was removed
  // before this process saw it grow.
  Status CheckFiles(const TableState& state);
  // Checks the same of the files of the index alone.
  Status CheckIndexFiles(const TableState& state) const;

  // Returns DataLoss if the folder was removed, or now belongs to another table.
  Status CheckInPlace() const { return directory_->CheckInPlace(); }

  const TableConfig& config() const { return *config_; }
  std::shared_ptr<const TableConfig> shared_config() const { return config_; }
  const std::string& folder() const { return folder_; }
  size_t dim() const { return static_cast<size_t>(config_->dim); }

  MappedFile& directory() { return *directory_; }
  MappedFile& segments() { return *segments_; }
  MappedFile& free_rows() { return *free_; }
  MappedFile& erased() { return *erased_; }

  uint32_t* directory_entries() const { return reinterpret_cast<uint32_t*>(directory_->data()); }
  Segment* segment(uint32_t number) const {
    return reinterpret_cast<Segment*>(segments_->data()) + number;
  }
  uint32_t* free_stack() const { return reinterpret_cast<uint32_t*>(free_->data()); }
  ErasedKey* erased_keys() const { return reinterpret_cast<ErasedKey*>(erased_->data()); }
  // Returns the largest length of the log of erased keys, for a table with `live` keys.
  static uint64_t MaxErased(uint64_t live) { return std::max<uint64_t>(1u << 16, live); }

  // Returns whether this is the name of a plane's file or of a list of planes.
  static bool IsPlaneFile(const std::string& name);
  // Returns the planes of the state's binding, and maps them on first use; null if they cannot be
  // mapped.
  const PlaneList* Planes(const TableState& state);
  // Returns the same, or the reason why they cannot be mapped.
  Result<const PlaneList*> BoundPlanes(const TableState& state);
  // Writer: creates the list of planes that follows the state's, with new slots that have initial
  // values for all existing rows. In a tiered table all planes are new, and it must have no rows in
  // memory.
  Status CreatePlanes(const TableState& state, const OptimizerConfig& optimizer);
  // Writer: deletes lists and slots of other bindings than the committed state's: earlier ones, and
  // those that a killed writer left. Existing mappings stay valid. DataLoss, with nothing deleted:
  // the state's binding has a slot that its optimizer does not have.
  Status RemoveOtherPlanes(const TableState& state);
  // Returns whether planes of another binding than `generation` are mapped.
  bool HasOtherPlanes(uint32_t generation);

  // Returns the rows on disk, with the planes of the state's binding, and opens them on first use;
  // null if the table has all rows in memory.
  Result<RecordStore*> Records(const TableState& state);
  // Writer: rewrites the rows on disk with the planes that follow the state's (CreatePlanes),
  // indexed with this seed. Returns the number of moves of their state.
  Result<uint32_t> ConvertRecords(const TableState& state, uint64_t index_seed);
  // Returns how the memory of a tiered table with these planes is divided.
  MemoryPlan PlanOf(const PlaneList& list) const;

  // Returns all mapped files of the table.
  std::vector<const MappedFile*> Mappings();
  // Returns the bytes of the table's files in memory. Asks the file system for each.
  uint64_t Bytes(const TableState& state);
  // Returns the bytes of all files in a table's folder.
  static uint64_t BytesIn(const std::string& folder);
  // Deletes the files of a table that no committed state names, and its folder. Other files stay,
  // and then the folder stays, too. Mappings stay valid.
  static void Remove(const std::string& folder);
  // Returns whether a folder that no committed state names was a table: its writer was killed while
  // it created the table, or has removed it.
  static bool IsLeftover(const std::string& folder);

 private:
  TableFiles(std::string folder, TableConfig config)
      : folder_(std::move(folder)),
        config_(std::make_shared<const TableConfig>(std::move(config))) {}
  std::string PlanePath(const Plane& plane) const;
  std::string ListPath(uint32_t generation) const;
  // Creates the planes of `generation`, with initial values for `rows` rows, and then their list.
  Status MakePlanes(PlaneList list, uint32_t generation, uint64_t rows);
  // Called with planes_mutex_.
  Status MapPlane(Plane* plane);
  // Unmaps and deletes the planes of a binding that was not completed.
  void ForgetPlanes(uint32_t generation);
  const PlaneList* Keep(PlaneList list);
  // Returns how many row numbers the table may need: a commit adds rows before it removes others.
  size_t RoomRows() const;

  const std::string folder_;
  const std::shared_ptr<const TableConfig> config_;
  bool writable_ = false;
  std::unique_ptr<MappedFile> directory_, segments_, free_, erased_;
  std::mutex planes_mutex_;
  std::vector<std::unique_ptr<MappedFile>> plane_files_;
  std::vector<std::unique_ptr<const PlaneList>> lists_;  // all mapped so far: readers use them
  std::atomic<const PlaneList*> latest_{nullptr};
  std::map<uint32_t, std::unique_ptr<RecordStore>> records_;  // by generation of planes
};

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_FILES_H_
