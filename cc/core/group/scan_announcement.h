// ScanAnnouncement: a scan's place in its group, and its file (scan_file.h).
#ifndef TFSPS_CORE_GROUP_SCAN_ANNOUNCEMENT_H_
#define TFSPS_CORE_GROUP_SCAN_ANNOUNCEMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/group/control_file.h"
#include "core/group/scan_file.h"
#include "core/os/file_lock.h"

namespace tsps {

class ScanAnnouncement {
 public:
  // Announces a scan. Waits for one of the first `places` places until `deadline` (NowNs); then
  // Unavailable. FailedPrecondition, with the reason: this process must not write to the group, or
  // there is no space for the file.
  static Result<std::unique_ptr<ScanAnnouncement>> Make(const std::string& group_path,
                                                        ControlFile& control,
                                                        const std::vector<ScanFile::Wanted>& wanted,
                                                        uint64_t limit, size_t places,
                                                        uint64_t deadline);
  // Withdraws the announcement.
  ~ScanAnnouncement();

  ScanFile& file() const { return *file_; }
  std::string images_path() const { return ScanImagesPath(group_path_, place_); }
  // Returns OK as long as every row that was written since the announcement has its bit.
  // Unavailable, with the reason: the writer has ended the scan.
  Status Check() const;

 private:
  explicit ScanAnnouncement(std::string group_path) : group_path_(std::move(group_path)) {}

  const std::string group_path_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<ScanFile> file_;
  std::atomic<uint64_t>* word_ = nullptr;  // in LiveState.scans
  uint64_t id_ = 0;
  size_t place_ = 0;
};

}  // namespace tsps

#endif  // TFSPS_CORE_GROUP_SCAN_ANNOUNCEMENT_H_
