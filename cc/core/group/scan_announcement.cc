#include "core/group/scan_announcement.h"

#include <unistd.h>

#include <random>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fault_point.h"
#include "core/os/directory.h"

namespace tsps {
namespace {

constexpr int kRetryUs = 1000;

uint64_t NewId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

// Removes the files of killed scans.
void RemoveFilesOf(const std::string& group, size_t place) {
  const std::string prefix = ".scan-" + std::to_string(place) + ".";
  for (const std::string& name : EntriesOf(group)) {
    if (name.rfind(prefix, 0) != 0 || name == prefix + "images") continue;
    unlink((group + "/" + name).c_str());
  }
}

}  // namespace

Result<std::unique_ptr<ScanAnnouncement>> ScanAnnouncement::Make(
    const std::string& group_path, ControlFile& control,
    const std::vector<ScanFile::Wanted>& wanted, uint64_t limit, size_t places, uint64_t deadline) {
  const auto cannot = [](const std::string& why) { return Status(Code::kFailedPrecondition, why); };
  std::atomic<uint64_t>* const words = control.Announcements();
  if (words == nullptr) return cannot("this process must not write to the group");
  std::unique_ptr<ScanAnnouncement> announcement(new ScanAnnouncement(group_path));
  size_t place = 0;
  while (announcement->lock_ == nullptr) {
    auto lock = FileLock::Acquire(ScanLockPath(group_path, place), "another scan has this place");
    if (lock.ok()) {
      announcement->lock_ = std::move(*lock);
      break;
    }
    if (lock.status().code() == Code::kResourceExhausted) return lock.status();
    if (lock.status().code() != Code::kAborted) return cannot(lock.status().message());
    if (++place < places) continue;
    if (NowNs() > deadline) {
      return Error(Code::kUnavailable, "a scan of ", group_path, " cannot begin, because ", places,
                   " scans are in progress, which is the limit. Try again when one has ended");
    }
    usleep(kRetryUs);
    place = 0;
  }
  RemoveFilesOf(group_path, place);
  announcement->id_ = NewId();
  const std::string path = ScanPath(group_path, place, announcement->id_);
  auto file = ScanFile::Create(path, announcement->id_, limit, wanted);
  if (!file.ok()) {
    unlink(path.c_str());
    return cannot(file.status().message());
  }
  announcement->file_ = std::move(*file);
  announcement->word_ = &words[place];
  announcement->place_ = place;
  TSPS_FAULT_POINT("scan.made");
  announcement->word_->store(announcement->id_, std::memory_order_seq_cst);
#ifndef __SANITIZE_THREAD__
  // Either the writer sees the announcement after it has made the sequence word odd, or this
  // process sees the odd word when it now reads it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  TSPS_FAULT_POINT("scan.announced");
  return announcement;
}

ScanAnnouncement::~ScanAnnouncement() {
  if (lock_ == nullptr || !lock_->HeldByThisProcess() || file_ == nullptr) return;
  uint64_t id = id_;
  word_->compare_exchange_strong(id, 0);
  unlink(file_->file().path().c_str());
}

Status ScanAnnouncement::Check() const {
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  if (!lock_->HeldByThisProcess()) {
    return Error(Code::kFailedPrecondition, "a scan of ", group_path_,
                 " belongs to the process that began it, not to its children");
  }
  if (word_->load(std::memory_order_acquire) == id_) return Status();
  const auto ended = [&](const auto&... why) {
    return Error(Code::kUnavailable, "the scan of ", group_path_, " was ended: ", why...);
  };
  switch (static_cast<ScanEnd>(file_->header().ended.load())) {
    case ScanEnd::kLimit:
      return ended("rows of more than ", file_->limit(),
                   " bytes were written during the scan, which is its limit");
    case ScanEnd::kNoRoom:
      return ended("there is no space for images of the rows that were written");
    case ScanEnd::kPlanes:
      return ended("a table was bound to another optimizer");
    case ScanEnd::kNot:
      break;
  }
  return ended("its writer could not open ", file_->file().path());
}

}  // namespace tsps
