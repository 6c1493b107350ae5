// TableFiles: one table's files, mapped in this process.
//
//   config, directory, segments, rows, free, slots.<generation>.<name>   (layout.h)
#ifndef TFSPS_CORE_TABLE_TABLE_FILES_H_
#define TFSPS_CORE_TABLE_TABLE_FILES_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"
#include "core/table/layout.h"
#include "core/table/row_optimizer.h"
#include "core/table/table_config.h"

namespace tsps {

// Slot files of one optimizer binding.
struct SlotFiles {
  uint32_t generation = 0;
  std::vector<std::unique_ptr<MappedFile>> files;  // SlotCount(kind) of them
};

class TableFiles {
 public:
  // Makes the folder and its files; leftovers of a killed creation under the name are removed.
  static Result<std::unique_ptr<TableFiles>> Create(const std::string& folder,
                                                    const TableConfig& config);
  // Maps an existing table read-only.
  static Result<std::unique_ptr<TableFiles>> Open(const std::string& folder);

  // Slot files are those of a committed state.
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
  size_t row_bytes() const { return dim() * sizeof(float); }

  MappedFile& directory() { return *directory_; }
  MappedFile& segments() { return *segments_; }
  MappedFile& rows() { return *rows_; }
  MappedFile& free_rows() { return *free_; }

  uint32_t* directory_entries() const { return reinterpret_cast<uint32_t*>(directory_->data()); }
  Segment* segment(uint32_t number) const {
    return reinterpret_cast<Segment*>(segments_->data()) + number;
  }
  float* row(uint32_t number) const {
    return reinterpret_cast<float*>(rows_->data()) + static_cast<size_t>(number) * dim();
  }
  uint32_t* free_stack() const { return reinterpret_cast<uint32_t*>(free_->data()); }

  // Maps the slot files of the state's binding on first use; null when they cannot be mapped or
  // there are none.
  const SlotFiles* Slots(const TableState& state);
  // Writer: new slot files of `generation`, room for `rows` rows, filled with initial values for
  // them.
  Status CreateSlots(uint32_t generation, const OptimizerConfig& optimizer, uint64_t rows);
  // Writer: deletes the slot files of other bindings than the committed state's: killed ones, and
  // those before it. Mappings of them stay valid. DataLoss, with nothing deleted, if the state's
  // binding has a slot that its optimizer does not have.
  Status RemoveOtherSlots(const TableState& state) const;
  // Whether slots of another binding than the committed state's are mapped.
  bool HasOtherSlots(uint32_t generation) const;
  float* slot_row(const SlotFiles& slots, int slot, uint32_t number) const {
    return reinterpret_cast<float*>(slots.files[static_cast<size_t>(slot)]->data()) +
           static_cast<size_t>(number) * dim();
  }

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
  std::string SlotPath(uint32_t generation, OptimizerKind kind, int slot) const;
  // Slots, where the optimizer has some: an error if they cannot be had.
  Result<const SlotFiles*> BoundSlots(const TableState& state);
  size_t MaxRows() const;
  size_t MaxRowBytes() const { return MaxRows() * row_bytes(); }

  const std::string folder_;
  const std::shared_ptr<const TableConfig> config_;
  bool writable_ = false;
  std::unique_ptr<MappedFile> directory_, segments_, rows_, free_;
  std::mutex slots_mutex_;
  std::vector<std::unique_ptr<SlotFiles>> slots_;  // all mapped so far: readers may hold any
  std::atomic<const SlotFiles*> latest_slots_{nullptr};
};

}  // namespace tsps

#endif  // TFSPS_CORE_TABLE_TABLE_FILES_H_
