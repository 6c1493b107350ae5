#include "core/tier/record_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/base/limits.h"
#include "core/os/directory.h"
#include "core/os/mapped_file.h"
#include "core/tier/disk_totals.h"
#include "core/tier/record_files.h"
#include "core/tier/record_reads.h"

namespace tsps {
namespace {

// The overhead of a read is 12 us, in which a disk reads about this many bytes of a long read
// (measured with 32 threads: 85,000 reads of a page per second; 1.5 GB/s in long reads).
constexpr size_t kReadBytes = 16 * 1024;

constexpr size_t kMaxReadBytes = 128 * 1024;  // of one read, unless a record is larger

constexpr size_t kRecordsAhead = 8;        // the distance of prefetches in the cache
constexpr size_t kCachedPerThread = 1024;  // waking a thread costs as much as some hundred records

}  // namespace

Result<std::unique_ptr<RecordLog>> RecordLog::Open(const std::string& folder, RecordLayout layout,
                                                   IoThreads& threads) {
  TSPS_RETURN_IF_ERROR(CheckPrivateDirectory(folder));
  std::unique_ptr<RecordLog> log(new RecordLog(folder, std::move(layout), threads));
  log->lock_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (log->lock_ < 0) return ErrnoError("cannot open", folder);
  flock(log->lock_, LOCK_SH | LOCK_NB);  // some file systems have no locks
  if (threads.buffer_bytes() < log->layout_.record_bytes + 2 * kPageBytes) {
    return Error(Code::kInternal, "threads with buffers of ", threads.buffer_bytes(),
                 " bytes cannot read records of ", log->layout_.record_bytes, " bytes");
  }
  return log;
}

RecordLog::~RecordLog() {
  if (lock_ >= 0) close(lock_);
}

void RecordLog::Wrote(size_t records, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.records_written += records;
  counters_.bytes_written += bytes;
}

Status RecordLog::RemoveFile(uint32_t number) {
  open_.Forget(number);
  return RecordFile::Remove(folder_, number);
}

void RecordLog::VisitCached(const uint32_t* places, size_t begin, size_t end, const Visit& visit,
                            std::vector<uint32_t>* missing) const {
  std::vector<char> record(layout_.record_bytes);
  for (size_t i = begin; i < end; ++i) {
    if (i + 2 * kRecordsAhead < end) cache_->Prefetch(places[i + 2 * kRecordsAhead]);
    if (i + kRecordsAhead < end) cache_->PrefetchRecord(places[i + kRecordsAhead]);
    if (cache_->Find(places[i], record.data())) {
      visit(i, RecordLayout::KeyOf(record.data()),
            RecordLayout::PayloadOf(static_cast<const char*>(record.data())));
    } else {
      missing->push_back(static_cast<uint32_t>(i));
    }
  }
}

std::vector<uint32_t> RecordLog::VisitCached(const uint32_t* places, size_t n,
                                             const Visit& visit) const {
  std::vector<uint32_t> missing;
  if (cache_ == nullptr) {
    missing.resize(n);
    std::iota(missing.begin(), missing.end(), 0u);
    return missing;
  }
  const size_t parts = std::clamp<size_t>(n / kCachedPerThread, 1,
                                          std::max(1u, std::thread::hardware_concurrency()));
  if (parts == 1) {
    VisitCached(places, 0, n, visit, &missing);
    return missing;
  }
  std::vector<std::vector<uint32_t>> missing_of(parts);
  static_cast<void>(
      threads_.Run(parts, /*urgent=*/true, [&](size_t part, const PageBuffer&) -> Status {
        VisitCached(places, n * part / parts, n * (part + 1) / parts, visit, &missing_of[part]);
        return {};
      }));
  for (const std::vector<uint32_t>& part : missing_of) {
    missing.insert(missing.end(), part.begin(), part.end());
  }
  return missing;
}

Status RecordLog::Read(const uint32_t* places, size_t n, bool urgent, const Visit& visit) {
  const uint64_t began = NowNs();
  std::vector<uint32_t> order = VisitCached(places, n, visit);
  std::sort(order.begin(), order.end(),
            [places](uint32_t a, uint32_t b) { return places[a] < places[b]; });
  std::vector<uint32_t> sorted(order.size());
  for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = places[order[i]];
  const size_t cached = n - sorted.size();
  n = sorted.size();

  const size_t most = std::max(kMaxReadBytes, layout_.record_bytes + 2 * kPageBytes);
  const ReadCosts costs =
      CheapestReads(layout_, sorted.data(), n, kReadBytes, std::min(most, threads_.buffer_bytes()));
  const std::vector<RecordRead> reads = PlanReads(layout_, sorted.data(), n, costs);
  uint64_t bytes = 0;
  for (const RecordRead& read : reads) bytes += read.bytes;
  const Status status =
      threads_.Run(reads.size(), urgent, [&](size_t item, const PageBuffer& buffer) -> Status {
        const RecordRead& read = reads[item];
        // The reads are sorted by file, so the threads use few files at a time.
        TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<RecordFile> file, FileOf(read.file));
        TSPS_RETURN_IF_ERROR(file->Read(read.offset, read.bytes, buffer.data()));
        for (size_t i = read.first; i < read.first + read.n; ++i) {
          const uint32_t slot = layout_.slot_of(sorted[i]);
          const char* record = buffer.data() + (layout_.offset(slot) - read.offset);
          if (!layout_.Sealed(sorted[i], record)) {
            return Damaged(file->path(), "the checksum of record ", slot, " does not match");
          }
          if (cache_ != nullptr) cache_->Put(sorted[i], record);
          visit(order[i], RecordLayout::KeyOf(record), RecordLayout::PayloadOf(record));
        }
        return {};
      });
  DiskTotals& totals = DiskTotals::OfProcess();
  totals.records.fetch_add(n, std::memory_order_relaxed);
  totals.bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (urgent) {
    totals.late.fetch_add(n, std::memory_order_relaxed);
    totals.cached.fetch_add(cached, std::memory_order_relaxed);
    totals.waited_ns.fetch_add(NowNs() - began, std::memory_order_relaxed);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.reads += reads.size();
  counters_.bytes_read += bytes;
  counters_.records_read += n;
  counters_.records_cached += cached;
  return status;
}

Result<PageBuffer> RecordLog::ReadSlots(uint32_t number, uint32_t slot, uint32_t n,
                                        const VisitPlace& visit) {
  TSPS_ASSIGN_OR_RETURN(const std::shared_ptr<RecordFile> file, FileOf(number));
  const size_t begin = layout_.offset(slot) / kPageBytes * kPageBytes;
  const size_t bytes = layout_.offset(slot + n) - begin;
  TSPS_ASSIGN_OR_RETURN(PageBuffer buffer, PageBuffer::Make(bytes));
  TSPS_RETURN_IF_ERROR(file->Read(begin, buffer.bytes(), buffer.data()));
  for (uint32_t i = slot; i < slot + n; ++i) {
    const char* record = buffer.data() + (layout_.offset(i) - begin);
    const uint32_t place = layout_.place(number, i);
    if (!layout_.Sealed(place, record)) continue;
    visit(place, RecordLayout::KeyOf(record), RecordLayout::PayloadOf(record));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  counters_.reads += 1;
  counters_.bytes_read += buffer.bytes();
  return buffer;
}

uint64_t RecordLog::bytes() const {
  uint64_t bytes = 0;
  struct stat info;
  for (const uint32_t number : RecordFilesIn(folder_)) {
    if (stat(RecordFile::PathOf(folder_, number).c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_size);
    }
  }
  return bytes;
}

RecordLog::Counters RecordLog::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

}  // namespace tsps
