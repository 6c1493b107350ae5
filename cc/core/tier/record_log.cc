#include "core/tier/record_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/base/limits.h"
#include "core/os/directory.h"
#include "core/os/mapped_file.h"
#include "core/tier/record_reads.h"

namespace tsps {
namespace {

constexpr size_t kAppendBytes = size_t{1} << 20;  // of one write, unless a record is larger
// The overhead of a read is 12 us, in which a disk reads about this many bytes of a long read
// (measured with 32 threads: 85,000 reads of a page per second; 1.5 GB/s in long reads).
constexpr size_t kReadBytes = 16 * 1024;

constexpr size_t kMaxReadBytes = 128 * 1024;  // of one read, unless a record is larger

constexpr size_t kRecordsAhead = 8;  // the distance of prefetches in the cache

constexpr size_t kOpenFiles = 128;  // the limit of a process is often 1,024

// Reads the number of a file of records. Returns false for other files.
bool ParseName(const std::string& name, uint32_t* number) {
  constexpr char kPrefix[] = "records.";
  if (name.rfind(kPrefix, 0) != 0 || name.size() > sizeof(kPrefix) - 1 + 9) return false;
  const std::string digits = name.substr(sizeof(kPrefix) - 1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return false;
  *number = static_cast<uint32_t>(std::stoul(digits));
  return true;
}

}  // namespace

ReadTotals& ReadTotals::OfProcess() {
  static ReadTotals* const totals = new ReadTotals();
  return *totals;
}

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
  for (const uint32_t number : log->Files()) {
    if (number >= log->layout_.max_files()) {
      return Damaged(RecordFile::PathOf(folder, number),
                     "its number is too large: a log has at "
                     "most ",
                     log->layout_.max_files(), " files");
    }
    const Status opened = log->FileOf(number).status();
    // The writer may have removed the file.
    if (!opened.ok() && opened.code() != Code::kNotFound) return opened;
    log->next_number_ = number + 1;
  }
  return log;
}

RecordLog::~RecordLog() {
  if (lock_ >= 0) close(lock_);
}

std::vector<uint32_t> RecordLog::Files() const {
  std::vector<uint32_t> numbers;
  uint32_t number;
  for (const std::string& name : EntriesOf(folder_)) {
    if (ParseName(name, &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Status RecordLog::BeginFile() {
  const std::vector<uint32_t> taken = Files();
  if (taken.size() >= layout_.max_files()) {
    return Error(Code::kResourceExhausted, folder_, " has ", taken.size(),
                 " files of records, the most that a log can have. Nothing was changed. Shard "
                 "the table over more nodes");
  }
  uint32_t number = next_number_ % layout_.max_files();
  while (std::binary_search(taken.begin(), taken.end(), number)) {
    number = (number + 1) % layout_.max_files();
  }
  TSPS_ASSIGN_OR_RETURN(current_, RecordFile::Create(folder_, number, layout_));
  current_number_ = number;
  next_number_ = number + 1;
  next_slot_ = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  open_[number] = current_;
  return {};
}

Status RecordLog::Append(size_t n, const Fill& fill, uint32_t* places) {
  if (buffer_.data() == nullptr) {
    const size_t bytes = std::max(kAppendBytes, layout_.record_bytes + 2 * kPageBytes);
    TSPS_ASSIGN_OR_RETURN(buffer_, PageBuffer::Make(bytes));
  }
  for (size_t done = 0; done < n;) {
    uint32_t slot = layout_.SlotOnNewPage(next_slot_);
    if (current_ == nullptr || slot >= layout_.records_per_file) {
      TSPS_RETURN_IF_ERROR(BeginFile());
      slot = 0;
    }
    const size_t begin = layout_.offset(slot) / kPageBytes * kPageBytes;
    const size_t lead = layout_.offset(slot) - begin;
    const size_t count = std::min({n - done, layout_.records_per_file - slot,
                                   (buffer_.bytes() - lead) / layout_.record_bytes});
    char* at = buffer_.data() + lead;
    std::memset(buffer_.data(), 0, lead);
    for (size_t i = 0; i < count; ++i, at += layout_.record_bytes) {
      const uint32_t place = layout_.place(current_number_, slot + static_cast<uint32_t>(i));
      const int64_t key = fill(done + i, RecordLayout::PayloadOf(at));
      layout_.Seal(place, key, at);
      places[done + i] = place;
    }
    const size_t used = static_cast<size_t>(at - buffer_.data());
    const size_t bytes = (used + kPageBytes - 1) / kPageBytes * kPageBytes;
    std::memset(at, 0, bytes - used);
    TSPS_RETURN_IF_ERROR(current_->Write(begin, bytes, buffer_.data()));
    TSPS_FAULT_POINT("tier_appended");
    next_slot_ = slot + static_cast<uint32_t>(count);
    done += count;
    const std::lock_guard<std::mutex> lock(mutex_);
    counters_.records_written += count;
    counters_.bytes_written += bytes;
  }
  return {};
}

Status RecordLog::RemoveFile(uint32_t number) {
  std::shared_ptr<RecordFile> file;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = open_.find(number);
    if (entry != open_.end()) {
      file = entry->second;
      open_.erase(entry);
    }
  }
  if (number == current_number_) {
    current_.reset();
    current_number_ = UINT32_MAX;
  }
  if (file == nullptr) {
    TSPS_ASSIGN_OR_RETURN(file, RecordFile::Open(folder_, number, layout_));
  }
  return file->Remove();
}

Result<std::shared_ptr<RecordFile>> RecordLog::FileOf(uint32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<RecordFile>& file = open_[number];
  // The writer may have removed the file, and given its number to a new one.
  if (file == nullptr || !file->InPlace()) {
    auto opened = RecordFile::Open(folder_, number, layout_);
    if (!opened.ok()) {
      open_.erase(number);
      return opened.status();
    }
    file = *opened;
    if (open_.size() > kOpenFiles) {  // close any other file
      const auto first = open_.begin();
      open_.erase(first->first == number ? std::next(first) : first);
    }
    return *opened;
  }
  return file;
}

std::vector<uint32_t> RecordLog::VisitCached(const uint32_t* places, size_t n,
                                             const Visit& visit) const {
  std::vector<uint32_t> missing;
  if (cache_ == nullptr) {
    missing.resize(n);
    std::iota(missing.begin(), missing.end(), 0u);
    return missing;
  }
  std::vector<char> record(layout_.record_bytes);
  for (size_t i = 0; i < n; ++i) {
    if (i + 2 * kRecordsAhead < n) cache_->Prefetch(places[i + 2 * kRecordsAhead]);
    if (i + kRecordsAhead < n) cache_->PrefetchRecord(places[i + kRecordsAhead]);
    if (cache_->Find(places[i], record.data())) {
      visit(i, RecordLayout::KeyOf(record.data()),
            RecordLayout::PayloadOf(static_cast<const char*>(record.data())));
    } else {
      missing.push_back(static_cast<uint32_t>(i));
    }
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
  std::map<uint32_t, std::shared_ptr<RecordFile>> files;
  uint64_t bytes = 0;
  for (const RecordRead& read : reads) {
    bytes += read.bytes;
    if (files.count(read.file) != 0) continue;
    TSPS_ASSIGN_OR_RETURN(files[read.file], FileOf(read.file));
  }
  const Status status =
      threads_.Run(reads.size(), urgent, [&](size_t item, const PageBuffer& buffer) -> Status {
        const RecordRead& read = reads[item];
        const RecordFile& file = *files.find(read.file)->second;
        TSPS_RETURN_IF_ERROR(file.Read(read.offset, read.bytes, buffer.data()));
        for (size_t i = read.first; i < read.first + read.n; ++i) {
          const uint32_t slot = layout_.slot_of(sorted[i]);
          const char* record = buffer.data() + (layout_.offset(slot) - read.offset);
          if (!layout_.Sealed(sorted[i], record)) {
            return Damaged(file.path(), "the checksum of record ", slot, " does not match");
          }
          if (cache_ != nullptr) cache_->Put(sorted[i], record);
          visit(order[i], RecordLayout::KeyOf(record), RecordLayout::PayloadOf(record));
        }
        return {};
      });
  ReadTotals& totals = ReadTotals::OfProcess();
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
  for (const uint32_t number : Files()) {
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
