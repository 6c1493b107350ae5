// OpenRecordFiles: the files of a record log that this process has open, which are those that it
// used last. A log may have thousands of files, a process often 1,024 descriptors.
#ifndef TFSPS_CORE_TIER_OPEN_RECORD_FILES_H_
#define TFSPS_CORE_TIER_OPEN_RECORD_FILES_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/base/status.h"
#include "core/tier/record_file.h"

namespace tsps {

// Thread-safe.
class OpenRecordFiles {
 public:
  OpenRecordFiles(const std::string& folder, const RecordLayout& layout);

  // Returns a file that exists at this moment, of which the number in its id is valid. The header
  // of a file is read once. NotFound: there is none with this number.
  Result<std::shared_ptr<RecordFile>> Get(uint32_t number);
  // Returns what the header of a file says, and keeps the file open. NotFound: as in Get.
  Result<RecordFileId> IdOf(uint32_t number);
  // Takes a file that was just created.
  void Put(std::shared_ptr<RecordFile> file);
  void Forget(uint32_t number);
  // Returns how many files stay open while nobody uses them: a sixteenth of the process's limit of
  // descriptors when the log was opened, 4 to 128.
  size_t limit() const { return limit_; }

 private:
  using Files = std::list<std::shared_ptr<RecordFile>>;
  void ForgetLocked(uint32_t number);

  const std::string& folder_;
  const RecordLayout& layout_;
  const size_t limit_;
  std::mutex mutex_;
  Files files_;  // the last one that was used first
  std::unordered_map<uint32_t, Files::iterator> by_number_;
  std::unordered_map<uint32_t, RecordFile::Inode> checked_;  // files whose header was read
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_OPEN_RECORD_FILES_H_
