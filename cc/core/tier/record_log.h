// RecordLog: the rows of a table that are not in memory, one record each, in files that only ever
// grow by appends.
//
// The log does not know which records are live; the RecordIndex does. A key may have several
// records, and a file whose records are all dead is removed. The group's writer appends
// (record_appender.h), any process reads, and the processes share only the files. A killed writer
// may leave records at the end of its files that no index knows; the next writer begins new ones.
#ifndef TFSPS_CORE_TIER_RECORD_LOG_H_
#define TFSPS_CORE_TIER_RECORD_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tier/io_threads.h"
#include "core/tier/open_record_files.h"
#include "core/tier/page_buffer.h"
#include "core/tier/record_cache.h"
#include "core/tier/record_file.h"

namespace tsps {

class RecordLog {
 public:
  // Opens the log in `folder`, which must be private to the user and may be empty. The threads must
  // outlive the log. While a process has the log open, the folder has a shared lock (flock), which
  // shows that the log is not a leftover of a job that has ended.
  static Result<std::unique_ptr<RecordLog>> Open(const std::string& folder, RecordLayout layout,
                                                 IoThreads& threads);

  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // Makes Read look for records in `cache` first, and put there what it reads. Call it before the
  // first Read.
  void UseCache(std::unique_ptr<RecordCache> cache) { cache_ = std::move(cache); }

  // Returns the cache, or null.
  RecordCache* cache() const { return cache_.get(); }
  size_t cache_bytes() const { return cache_ == nullptr ? 0 : cache_->bytes(); }
  size_t cached_records() const { return cache_ == nullptr ? 0 : cache_->records(); }

  const RecordLayout& layout() const { return layout_; }
  const std::string& folder() const { return folder_; }
  // --- Writer only: what it did to the log. ---
  void Created(const std::shared_ptr<RecordFile>& file) { open_.Put(file); }
  void Wrote(size_t records, size_t bytes);
  Status RemoveFile(uint32_t number);

  // --- Any process, any thread. ---
  // Reads records, in any order and on many threads, and calls visit(i, key, payload) for
  // places[i]. NotFound: a file was removed. DataLoss, naming file and record: a record is not as
  // it was written. A caller that raced with the writer gets the places from the index again.
  using Visit = std::function<void(size_t i, int64_t key, const char* payload)>;
  Status Read(const uint32_t* places, size_t n, bool urgent, const Visit& visit);

  // Visits the records in slots [slot, slot + n) of a file on the calling thread, without slots
  // that were never written. The payloads point into the returned buffer.
  using VisitPlace = std::function<void(uint32_t place, int64_t key, const char* payload)>;
  Result<PageBuffer> ReadSlots(uint32_t number, uint32_t slot, uint32_t n, const VisitPlace& visit);
  // Returns a file, opened. NotFound: there is none with this number.
  Result<std::shared_ptr<RecordFile>> FileOf(uint32_t number) { return open_.Get(number); }
  // Returns what the header of a file says. NotFound: there is none with this number.
  Result<RecordFileId> IdOf(uint32_t number) { return open_.IdOf(number); }
  // Returns the bytes of all files, for which it looks at each of them.
  uint64_t bytes() const;

  // Counters since the log was opened.
  struct Counters {
    uint64_t reads = 0, bytes_read = 0, records_read = 0, bytes_written = 0, records_written = 0;
    uint64_t records_cached = 0;  // records that Read found in the cache
  };
  Counters counters() const;

 private:
  RecordLog(std::string folder, RecordLayout layout, IoThreads& threads)
      : folder_(std::move(folder)),
        layout_(std::move(layout)),
        threads_(threads),
        open_(folder_, layout_) {}
  // Visits the records that are in the cache, on many threads. Returns the positions of the other
  // places.
  std::vector<uint32_t> VisitCached(const uint32_t* places, size_t n, const Visit& visit) const;
  void VisitCached(const uint32_t* places, size_t begin, size_t end, const Visit& visit,
                   std::vector<uint32_t>* missing) const;

  const std::string folder_;
  const RecordLayout layout_;
  IoThreads& threads_;
  std::unique_ptr<RecordCache> cache_;  // or null
  int lock_ = -1;                       // file descriptor of the folder

  OpenRecordFiles open_;

  mutable std::mutex mutex_;  // protects counters_
  Counters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_LOG_H_
