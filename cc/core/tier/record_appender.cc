#include "core/tier/record_appender.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/fault_point.h"
#include "core/base/limits.h"

namespace tsps {
namespace {

Status DiskFull(const Status& written, const std::string& folder, size_t needed) {
  struct statvfs disk;
  if (statvfs(folder.c_str(), &disk) != 0) return written;
  return Error(written.code(), written.message(), ": ", needed,
               " bytes of rows were to be written, and the disk has ",
               uint64_t{disk.f_bavail} * disk.f_frsize, " bytes free");
}

}  // namespace

Status RecordAppender::BeginFileIn(const std::string& space) {
  if (current_ != nullptr) EndFile();
  return BeginFile(space);
}

Status RecordAppender::BeginFile(const std::string& space) {
  TSPS_ASSIGN_OR_RETURN(const RecordFileId id, files_.Add(kind_));
  auto file = RecordFile::Create(log_.folder(), id, log_.layout(), space);
  if (!file.ok()) {
    files_.Remove(id.number);
    return file.status();
  }
  // A slow reader may have put a record into the cache after it was removed there.
  if (log_.cache() != nullptr && files_.Reuses(id)) {
    log_.cache()->RemoveAll(log_.layout().place(id.number, 0), log_.layout().records_per_file);
  }
  current_ = std::move(*file);
  current_number_.store(id.number, std::memory_order_relaxed);
  next_slot_ = 0;
  files_.Grow(id.number, kPageBytes);
  log_.Created(current_);
  return {};
}

void RecordAppender::EndFile() {
  files_.End(current_file());
  current_.reset();
  current_number_.store(UINT32_MAX, std::memory_order_relaxed);
}

Status RecordAppender::Append(size_t n, const Fill& fill, uint32_t* places) {
  const RecordLayout& layout = log_.layout();
  if (buffer_.data() == nullptr) {
    const size_t bytes = std::max(layout.buffer_bytes(), layout.record_bytes + 2 * kPageBytes);
    TSPS_ASSIGN_OR_RETURN(buffer_, PageBuffer::Make(bytes));
  }
  for (size_t done = 0; done < n;) {
    uint32_t slot = layout.SlotOnNewPage(next_slot_);
    if (current_ != nullptr && slot >= layout.records_per_file) EndFile();
    if (current_ == nullptr) {
      TSPS_RETURN_IF_ERROR(BeginFile(""));
      slot = 0;
    }
    const size_t begin = layout.offset(slot) / kPageBytes * kPageBytes;
    const size_t lead = layout.offset(slot) - begin;
    const size_t count = std::min(
        {n - done, layout.records_per_file - slot, (buffer_.bytes() - lead) / layout.record_bytes});
    char* at = buffer_.data() + lead;
    std::memset(buffer_.data(), 0, lead);
    for (size_t i = 0; i < count; ++i, at += layout.record_bytes) {
      const uint32_t place = layout.place(current_file(), slot + static_cast<uint32_t>(i));
      const int64_t key = fill(done + i, RecordLayout::PayloadOf(at));
      layout.Seal(place, key, at);
      places[done + i] = place;
    }
    const size_t used = static_cast<size_t>(at - buffer_.data());
    const size_t bytes = (used + kPageBytes - 1) / kPageBytes * kPageBytes;
    std::memset(at, 0, bytes - used);
    const Status written = current_->Write(begin, bytes, buffer_.data());
    if (written.code() == Code::kResourceExhausted) {
      return DiskFull(written, log_.folder(), (n - done) * layout.record_bytes);
    }
    if (!written.ok()) {
      EndFile();  // the place on the disk may be broken
      return written;
    }
    TSPS_FAULT_POINT("tier_appended");
    next_slot_ = slot + static_cast<uint32_t>(count);
    files_.Grow(current_file(), begin + bytes);
    log_.Wrote(count, bytes);
    done += count;
  }
  return {};
}

}  // namespace tsps
