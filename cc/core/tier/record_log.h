// RecordLog: the rows of a table that are not in memory, a record each, in files to which records
// are only ever appended. Which of its records are live its users know (RecordIndex): of a key
// there may be many, and a file whose records are all dead is removed.
//
// The group's writer appends; any process reads. Nothing here is shared but the files. A process
// that is killed leaves records that nobody knows, behind those that are known: the next writer
// begins a new file.
#ifndef TFSPS_CORE_TIER_RECORD_LOG_H_
#define TFSPS_CORE_TIER_RECORD_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tier/io_threads.h"
#include "core/tier/page_buffer.h"
#include "core/tier/record_cache.h"
#include "core/tier/record_file.h"

namespace tsps {

// Of all logs of this process, since it began.
struct ReadTotals {
  std::atomic<uint64_t> records{0};    // read from a disk
  std::atomic<uint64_t> bytes{0};      // of these reads, what lies between the records included
  std::atomic<uint64_t> late{0};       // of the records, those that somebody was waiting for
  std::atomic<uint64_t> cached{0};     // records that were wanted and had been read before
  std::atomic<uint64_t> waited_ns{0};  // for reads that somebody was waiting for

  static ReadTotals& OfProcess();
};

class RecordLog {
 public:
  // `folder` is private to the user and may be empty. The threads must stay. While any process has
  // the log open its folder has a shared lock (flock): it is not what a job that is gone has left.
  static Result<std::unique_ptr<RecordLog>> Open(const std::string& folder, RecordLayout layout,
                                                 IoThreads& threads);

  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // Records that are read are kept there, and looked for. Before the first Read.
  void UseCache(std::unique_ptr<RecordCache> cache) { cache_ = std::move(cache); }

  // Of what was read, if there is any. Null: it keeps nothing.
  RecordCache* cache() const { return cache_.get(); }
  size_t cache_bytes() const { return cache_ == nullptr ? 0 : cache_->bytes(); }
  size_t cached_records() const { return cache_ == nullptr ? 0 : cache_->records(); }

  const RecordLayout& layout() const { return layout_; }
  const std::string& folder() const { return folder_; }
  // Numbers of the files that are there, ascending.
  std::vector<uint32_t> Files() const;

  // Writes n records, in few calls, and says where they are. fill(i, payload) writes the payload of
  // record i and returns its key. After an error none is known to be there; the same places are
  // tried again. The writer only; not thread-safe.
  using Fill = std::function<int64_t(size_t i, char* payload)>;
  Status Append(size_t n, const Fill& fill, uint32_t* places);
  // The file that records are being appended to: never one to be removed. None: UINT32_MAX.
  uint32_t current_file() const { return current_number_; }
  // The writer only.
  Status RemoveFile(uint32_t number);

  // Reads records, in any order and on many threads: visit(i, key, payload) for places[i]. NotFound
  // if a file is gone, DataLoss, naming file and record, if a record is not as it was written:
  // who has raced with the writer looks again where its records are.
  using Visit = std::function<void(size_t i, int64_t key, const char* payload)>;
  Status Read(const uint32_t* places, size_t n, bool urgent, const Visit& visit);

  // Visits the records of a file in slots [slot, slot + n), but for those that were never written,
  // on the calling thread. What it returns has them all.
  using VisitPlace = std::function<void(uint32_t place, int64_t key, const char* payload)>;
  Result<PageBuffer> ReadSlots(uint32_t number, uint32_t slot, uint32_t n, const VisitPlace& visit);
  // Of all files.
  uint64_t bytes() const;

  // Since it was opened.
  struct Counters {
    uint64_t reads = 0, bytes_read = 0, records_read = 0, bytes_written = 0, records_written = 0;
    uint64_t records_cached = 0;  // that were wanted and found in the cache
  };
  Counters counters() const;

 private:
  RecordLog(std::string folder, RecordLayout layout, IoThreads& threads)
      : folder_(std::move(folder)), layout_(std::move(layout)), threads_(threads) {}
  Status BeginFile();
  // Visits those of the places that are cached. Returns the positions of the others.
  std::vector<uint32_t> VisitCached(const uint32_t* places, size_t n, const Visit& visit) const;
  // Opened, and still under its name.
  Result<std::shared_ptr<RecordFile>> FileOf(uint32_t number);

  const std::string folder_;
  const RecordLayout layout_;
  IoThreads& threads_;
  std::unique_ptr<RecordCache> cache_;  // or null
  int lock_ = -1;                       // file descriptor of the folder

  // --- Writer. ---
  std::shared_ptr<RecordFile> current_;
  uint32_t current_number_ = UINT32_MAX;
  uint32_t next_number_ = 0;  // numbers go round, so that one comes again as late as can be
  uint32_t next_slot_ = 0;
  PageBuffer buffer_;

  mutable std::mutex mutex_;  // of the rest
  std::map<uint32_t, std::shared_ptr<RecordFile>> open_;
  Counters counters_;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_LOG_H_
