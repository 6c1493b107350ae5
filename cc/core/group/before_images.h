// BeforeImages: the writer's part in scans (scan.h). Before a mutation writes to rows, images of
// those that a scan has not passed yet go into the scan's file, each once.
//
// It never waits for a scan, and never fails: a scan for which there is no room ends.
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

// Rows that a mutation is going to write, each once.
struct TouchedRows {
  size_t place;
  uint64_t removed;
  const PlaneList* planes;
  const uint32_t* rows;
  size_t n;
};

// Entries that a mutation is going to take out of an index of records.
struct LeavingRecords {
  size_t place;  // of the table
  uint64_t removed;
  const std::vector<RecordMove>* moves;
};

class BeforeImages {
 public:
  // Removes what a killed writer has left.
  BeforeImages(std::string group_path, ControlFile& control, StorageReserver& reserver);
  ~BeforeImages();

  // Looks which scans are under way, before a mutation of the state of `epoch`. True if one was
  // announced since.
  bool Refresh(uint64_t epoch);
  // For all of them. `executor` may be null.
  void Save(const std::vector<TouchedRows>& touched, const std::vector<LeavingRecords>& leaving,
            Executor* executor);
  // Whether a scan is under way.
  bool any() const;

 private:
  struct Open {
    uint64_t id = 0;  // 0: none is under way in this place
    std::unique_ptr<ScanFile> file;
    std::unique_ptr<LockProbe> probe;
    uint64_t probed_ns = 0;
  };
  // Of a place, from scan to scan.
  struct Images {
    std::unique_ptr<MappedFile> file;
    uint64_t limit = 0;  // that it was opened for
    uint64_t used_ns = 0;
  };
  // The rows that need an image, of the scan's table t.
  struct Part {
    const TouchedRows* touched;
    size_t t;
    uint64_t wanted;  // planes
    std::vector<uint32_t> rows;
  };
  bool Look(size_t place, uint64_t epoch);
  Status OpenImages(size_t place, uint64_t begin, uint64_t bytes, uint64_t limit);
  void RemoveImages(size_t place);
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
