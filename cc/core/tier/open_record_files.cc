#include "core/tier/open_record_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace tsps {
namespace {

constexpr rlim_t kLeast = 4, kMost = 128;
constexpr rlim_t kShare = 16;  // of the process's descriptors
constexpr size_t kMostChecked = 1 << 16;

size_t Limit() {
  rlimit descriptors;
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kLeast;
  return std::clamp(descriptors.rlim_cur / kShare, kLeast, kMost);
}

}  // namespace

OpenRecordFiles::OpenRecordFiles(const std::string& folder, const RecordLayout& layout)
    : folder_(folder), layout_(layout), limit_(Limit()) {}

Result<std::shared_ptr<RecordFile>> OpenRecordFiles::Get(uint32_t number) {
  RecordFile::Inode checked;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = by_number_.find(number);
    if (entry != by_number_.end()) {
      // The writer may have removed the file, and given its number to a new one.
      if ((*entry->second)->InPlace()) {
        files_.splice(files_.begin(), files_, entry->second);
        return *entry->second;
      }
      ForgetLocked(number);
    }
    const auto known = checked_.find(number);
    if (known != checked_.end()) checked = known->second;
  }
  // Other threads open other files meanwhile.
  TSPS_ASSIGN_OR_RETURN(std::shared_ptr<RecordFile> file,
                        RecordFile::Open(folder_, number, layout_, &checked));
  Put(file);
  return file;
}

Result<RecordFileId> OpenRecordFiles::IdOf(uint32_t number) {
  TSPS_ASSIGN_OR_RETURN(std::shared_ptr<RecordFile> file,
                        RecordFile::Open(folder_, number, layout_));
  Put(file);
  return file->id();
}

void OpenRecordFiles::Put(std::shared_ptr<RecordFile> file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ForgetLocked(file->id().number);
  files_.push_front(std::move(file));
  by_number_[files_.front()->id().number] = files_.begin();
  if (files_.size() > limit_) ForgetLocked(files_.back()->id().number);
  // Most numbers are of files that were removed long ago.
  if (checked_.size() >= kMostChecked) checked_.clear();
  checked_[files_.front()->id().number] = files_.front()->inode();
}

void OpenRecordFiles::Forget(uint32_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ForgetLocked(number);
}

void OpenRecordFiles::ForgetLocked(uint32_t number) {
  const auto entry = by_number_.find(number);
  if (entry == by_number_.end()) return;
  files_.erase(entry->second);
  by_number_.erase(entry);
}

}  // namespace tsps
