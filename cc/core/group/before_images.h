// BeforeImages: the writer's part in scans (scan.h). Before a mutation writes to rows, this class
// copies images of the rows that a scan has not passed yet to the scan's file, each row once.
//
// It never waits for a scan and never fails. If there is no space for the images of a scan, that
// scan ends.
#ifndef TFSPS_CORE_GROUP_BEFORE_IMAGES_H_
#define TFSPS_CORE_GROUP_BEFORE_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/group/control_file.h"
#include "core/group/scan_file.h"
#include "core/os/file_lock.h"
#include "core/os/storage_reserver.h"
#include "core/table/planes.h"
#include "core/tier/record_moves.h"

namespace tsps {

// The rows of one table that a mutation is going to write, each once.
struct TouchedRows {
  size_t place;
  uint64_t removed;
  const PlaneList* planes;
  const uint32_t* rows;
  size_t n;
};

// The entries that a mutation is going to remove from the index of a table's records.
struct LeavingRecords {
  size_t place;  // of the table
  uint64_t removed;
  const std::vector<RecordMove>* moves;
};

// Belongs to the group's writer. Not thread-safe.
class BeforeImages {
 public:
  // Removes the files of images that a killed writer left.
  BeforeImages(std::string group_path, ControlFile& control, StorageReserver& reserver);
  ~BeforeImages();

  // Looks for scans in progress, before a mutation of the state of `epoch`. Returns whether one was
  // announced since the last call.
  bool Refresh(uint64_t epoch);
  // Saves the images for all scans in progress. `executor` may be null: the calling thread does all
  // the work.
  void Save(const std::vector<TouchedRows>& touched, const std::vector<LeavingRecords>& leaving,
            Executor* executor);
  // Returns whether a scan is in progress.
  bool any() const;

 private:
  struct Open {
    uint64_t id = 0;  // 0: this place has no scan in progress
    std::unique_ptr<ScanFile> file;
    std::unique_ptr<LockProbe> probe;
    uint64_t probed_ns = 0;
  };
  // The images file of a place, which is kept from scan to scan.
  struct Images {
    std::unique_ptr<MappedFile> file;
    uint64_t limit = 0;  // the limit that it was opened for
    uint64_t used_ns = 0;
  };
  // The rows of one table that need an image. `t` is the table's number in the scan.
  struct Part {
    const TouchedRows* touched;
    size_t t;
    uint64_t wanted;  // planes
    std::vector<uint32_t> rows;
  };
  // Refresh for one place.
  bool Look(size_t place, uint64_t epoch);
  // Opens the images file of a place and reserves `bytes` after `begin`.
  Status OpenImages(size_t place, uint64_t begin, uint64_t bytes, uint64_t limit);
  void RemoveImages(size_t place);
  // Ends the scan of a place; from then on its rows get no images.
  void End(size_t place, ScanEnd why);
  void Save(size_t place, const std::vector<TouchedRows>& touched,
            const std::vector<LeavingRecords>& leaving, Executor* executor);
  static void Write(const Part& part, ScanRecord* record, Executor* executor);
  static void WriteMoves(size_t table, const std::vector<RecordMove>& moves, ScanRecord* record);

  const int pid_;
  const std::string group_path_;
  ControlFile& control_;
  StorageReserver& reserver_;
  Open open_[kMaxScans];
  Images images_[kMaxScans];
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_BEFORE_IMAGES_H_
