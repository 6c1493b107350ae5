// RecordAppender: appends the records of one kind to a log. The rows that leave memory and the
// copies of compaction have an appender each, and files of their own: a step then never waits for
// the writes of compaction.
#ifndef TFSPS_CORE_TIER_RECORD_APPENDER_H_
#define TFSPS_CORE_TIER_RECORD_APPENDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/tier/page_buffer.h"
#include "core/tier/record_files.h"
#include "core/tier/record_log.h"

namespace tsps {

// Belongs to the writer. One thread at a time appends.
class RecordAppender {
 public:
  // The log and the files must outlive the appender.
  RecordAppender(RecordLog& log, RecordFiles& files, RecordKind kind)
      : log_(log), files_(files), kind_(kind) {}

  // Writes n records with few system calls, and stores their places in `places`. fill(i, payload)
  // writes the payload of record i and returns its key. After an error none of the records is known
  // to be on disk. If the disk was full, the next call uses the same places, else a new file.
  using Fill = std::function<int64_t(size_t i, char* payload)>;
  Status Append(size_t n, const Fill& fill, uint32_t* places);
  // Begins a new file in the space of another one, a reserve of at least the bytes of a file.
  Status BeginFileIn(const std::string& space);
  // Returns the number of the file that Append writes to, which must not be removed; UINT32_MAX if
  // it is going to begin a new file.
  uint32_t current_file() const { return current_number_.load(std::memory_order_relaxed); }
  // Returns the sequence number of that file. Only after a successful Append.
  uint64_t current_sequence() const { return current_->id().sequence; }

 private:
  Status BeginFile(const std::string& space);
  void EndFile();

  RecordLog& log_;
  RecordFiles& files_;
  const RecordKind kind_;
  std::shared_ptr<RecordFile> current_;
  std::atomic<uint32_t> current_number_{UINT32_MAX};
  uint32_t next_slot_ = 0;
  PageBuffer buffer_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_APPENDER_H_
