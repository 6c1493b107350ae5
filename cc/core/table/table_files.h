// TableFiles: one table's files, mapped in this process.
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

class TableFiles {
 public:
  static constexpr uint32_t kFirstGeneration = 1;  // of lists of planes

  // Makes the folder and its files; leftovers of a killed creation under the name are removed.
  static Result<std::unique_ptr<TableFiles>> Create(const std::string& folder,
                                                    const TableConfig& config, uint64_t index_seed);
  // Maps an existing table read-only, but for its planes: CheckState does.
  static Result<std::unique_ptr<TableFiles>> Open(const std::string& folder);

  // Planes are those of a committed state.
  Status MakeWritable(const TableState& state);
  // Checks what a committed state says, and that its files can be mapped and are long enough.
  Status CheckState(const TableState& state);
  // Checks that what is mapped of the files is what a committed state needs. ResourceExhausted:
  // since this process opened the table, another process has made it outgrow its address range.
  // DataLoss: a file is shorter, or was removed before this process saw it grow.
  Status CheckFiles(const TableState& state) const;

  // DataLoss if the folder was removed, or is another table's by now.
  Status CheckInPlace() const { return directory_->CheckInPlace(); }

  const TableConfig& config() const { return *config_; }
  std::shared_ptr<const TableConfig> shared_config() const { return config_; }
  const std::string& folder() const { return folder_; }
  size_t dim() const { return static_cast<size_t>(config_->dim); }
  size_t row_bytes() const { return row_bytes_; }

  MappedFile& directory() { return *directory_; }
  MappedFile& segments() { return *segments_; }
  MappedFile& free_rows() { return *free_; }
  MappedFile& erased() { return *erased_; }

  uint32_t* directory_entries() const { return reinterpret_cast<uint32_t*>(directory_->data()); }
  Segment* segment(uint32_t number) const {
    return reinterpret_cast<Segment*>(segments_->data()) + number;
  }
  char* row(uint32_t number) const { return embedding_ + size_t{number} * row_bytes_; }
  uint32_t* free_stack() const { return reinterpret_cast<uint32_t*>(free_->data()); }
  ErasedKey* erased_keys() const { return reinterpret_cast<ErasedKey*>(erased_->data()); }
  // How long the log of erased keys of a table with so many keys may become.
  static uint64_t MaxErased(uint64_t live) { return std::max<uint64_t>(1u << 16, live); }

  // Whether a file of this name is one of planes, or a list of them.
  static bool IsPlaneFile(const std::string& name);
  // The planes of the state's binding, which are mapped on first use; null when they cannot be.
  const PlaneList* Planes(const TableState& state);
  // Likewise, with the reason.
  Result<const PlaneList*> BoundPlanes(const TableState& state);
  // Writer: the list of planes after the state's, with new slots, which have room for the rows that
  // are there and are filled with initial values for them. Of a tiered table, which must have no
  // rows in memory, all planes are new.
  Status CreatePlanes(const TableState& state, const OptimizerConfig& optimizer);
  // Writer: deletes lists and slots of other bindings than the committed state's: killed ones, and
  // those before it. Mappings of them stay valid. DataLoss, with nothing deleted, if there is a
  // slot of the state's binding that its optimizer does not have.
  Status RemoveOtherPlanes(const TableState& state);
  // Whether planes of another binding than the committed state's are mapped.
  bool HasOtherPlanes(uint32_t generation) const;

  // The rows that are on disk, with the planes of the state's binding; opened on first use. Null:
  // the table has all rows in memory.
  Result<RecordStore*> Records(const TableState& state);
  // Writer: makes the rows on disk anew with the planes after the state's (CreatePlanes), indexed
  // with this seed. Returns the number of moves that their state has.
  Result<uint32_t> ConvertRecords(const TableState& state, uint64_t index_seed);
  // Of a tiered table with these planes.
  MemoryPlan PlanOf(const PlaneList& list) const;

  // All files of the table that are mapped.
  std::vector<const MappedFile*> Mappings();
  uint64_t Bytes(const TableState& state);
  // Of all files in a table's folder.
  static uint64_t BytesIn(const std::string& folder);
  // Deletes the files of a table that no committed state names, and its folder. Files that are no
  // table's stay, and the folder with them. Mappings stay valid.
  static void Remove(const std::string& folder);
  // Whether a folder that no committed state names was a table: killed while it was made, or
  // removed.
  static bool IsLeftover(const std::string& folder);

 private:
  TableFiles(std::string folder, TableConfig config)
      : folder_(std::move(folder)),
        config_(std::make_shared<const TableConfig>(std::move(config))) {}
  std::string PlanePath(const Plane& plane) const;
  std::string ListPath(uint32_t generation) const;
  // Makes the planes of `generation`, with initial values for `rows` rows, and their list.
  Status MakePlanes(PlaneList list, uint32_t generation, uint64_t rows);
  // Under planes_mutex_.
  Status MapPlane(Plane* plane);
  void ForgetPlanes(uint32_t generation);
  const PlaneList* Keep(PlaneList list);
  // Row numbers that it may need: a commit adds rows before it takes others away.
  size_t RoomRows() const;

  const std::string folder_;
  const std::shared_ptr<const TableConfig> config_;
  bool writable_ = false;
  std::unique_ptr<MappedFile> directory_, segments_, free_, erased_;
  size_t row_bytes_ = 0;       // of the embedding
  char* embedding_ = nullptr;  // where the embedding's plane begins
  std::mutex planes_mutex_;
  std::vector<std::unique_ptr<MappedFile>> plane_files_;
  std::vector<std::unique_ptr<const PlaneList>> lists_;  // all mapped so far: readers may hold any
  std::atomic<const PlaneList*> latest_{nullptr};
  std::map<uint32_t, std::unique_ptr<RecordStore>> records_;  // by generation of planes
};

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_FILES_H_
