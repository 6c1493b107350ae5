#include "kernels/device_caches.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/os/directory.h"
#include "kernels/group_registry.h"

namespace tsps {

namespace {

// The longest time for which a step of another thread writes rows on a device.
constexpr std::chrono::seconds kLongestMove{5};
// A lookup beside training is attempted this often. Each attempt begins right after a step's move.
constexpr int64_t kMostAttempts = 100;

std::string NoteOf(const std::string& table) {
  const SplitPath path = SplitTablePath(table);
  return path.parent + "/.newer-" + path.name;
}

Status WriteNote(const std::string& path, int64_t step) {
  TSPS_ASSIGN_OR_RETURN(const int file,
                        OpenRegularFile(path, O_WRONLY | O_CREAT | O_TRUNC, "cannot create"));
  const std::string text = std::to_string(step) + "\n";
  const ssize_t written = write(file, text.data(), text.size());
  const Status status =
      written == static_cast<ssize_t>(text.size()) ? Status() : ErrnoError("cannot write", path);
  close(file);
  return status;
}

}  // namespace

NewerNote::NewerNote(const std::string& table) : path_(NoteOf(table)) {}

Status NewerNote::Add(const void* cache, int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (caches_.empty()) TSPS_RETURN_IF_ERROR(WriteNote(path_, step));
  caches_.insert(cache);
  return Status();
}

void NewerNote::Remove(const void* cache) {
  const std::lock_guard<std::mutex> lock(mutex_);
  caches_.erase(cache);
  // The file may be a leftover of another process, whose rows were given up.
  if (caches_.empty()) unlink(path_.c_str());
}

DeviceCache::DeviceCache(const SlotDirectory::Options& options, const std::string& table,
                         std::shared_ptr<NewerNote> note)
    : directory_(options),
      queue_(&directory_),
      table_(SplitTablePath(table).name),
      note_(std::move(note)) {}

Status DeviceCache::CheckMoved() {
  std::unique_lock<std::mutex> lock(mutex_);
  return CheckMoved(&lock);
}

Result<uint64_t> DeviceCache::BeginLookup() {
  std::unique_lock<std::mutex> lock(mutex_);
  TSPS_RETURN_IF_ERROR(CheckMoved(&lock));
  return directory_.changes();
}

Result<int64_t> DeviceCache::EndLookup(uint64_t ticket, int64_t attempt) const {
  if (directory_.changes() == ticket) return 0;
  if (attempt < kMostAttempts) return attempt + 1;
  return Error(
      Code::kFailedPrecondition, "table ", table_, ": in each of ", attempt,
      " attempts to look rows up, a step of another thread moved rows of the device cache "
      "(cache=...), so no rows are returned. Look up in the thread that trains, or between "
      "steps, or use a table without a cache");
}

Result<SlotDirectory::Newer> DeviceCache::FindNewer() {
  std::unique_lock<std::mutex> lock(mutex_);
  TSPS_RETURN_IF_ERROR(CheckMoved(&lock));
  return directory_.FindNewer();
}

Status DeviceCache::CheckMoved(std::unique_lock<std::mutex>* lock) {
  // After one wait for this step has timed out, later calls do not wait.
  const auto longest = given_up_ == moving_ ? std::chrono::seconds(0) : kLongestMove;
  if (moved_.wait_for(*lock, longest, [this] { return moving_ == 0; })) return Status();
  given_up_ = moving_;
  return Error(Code::kFailedPrecondition, "table ", table_, ": step ", moving_step_,
               " was made on the host, and then failed on the device (cache=...). The rows of its "
               "keys are lost. Restore a checkpoint");
}

void DeviceCache::Moved(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<uint64_t>(number) != moving_) return;  // the cache was cleared meanwhile
  moving_ = 0;
  moved_.notify_all();
}

bool DeviceCache::moving() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return moving_ != 0;
}

Result<SlotDirectory::Plan> DeviceCache::MakePlan(const int64_t* keys, size_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TSPS_ASSIGN_OR_RETURN(plan_, directory_.MakePlan(keys, n));
  keys_.assign(keys, keys + n);
  return plan_;
}

Status DeviceCache::Commit(int64_t number, int64_t step, size_t rows_written) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<uint64_t>(number) != plan_.number) {
    return Error(Code::kInternal, "plan ", number,
                 " of a device cache cannot be committed, because the last plan is ", plan_.number);
  }
  const bool holds = std::any_of(plan_.slots.begin(), plan_.slots.end(),
                                 [](int32_t slot) { return slot != SlotDirectory::kNoSlot; });
  if (holds && directory_.newer() == 0) TSPS_RETURN_IF_ERROR(note_->Add(this, step));
  TSPS_RETURN_IF_ERROR(queue_.Commit(static_cast<uint64_t>(step),
                                     [&] { return directory_.Commit(plan_, keys_.data()); }));
  moving_ = plan_.number;
  moving_step_ = step;
  written += rows_written;
  return Status();
}

Result<size_t> DeviceCache::Flush(
    const SlotDirectory::Newer& newer,
    const std::function<Status(const std::vector<uint32_t>& positions)>& write) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<uint32_t> positions = directory_.StillNewer(newer);
  if (!positions.empty()) TSPS_RETURN_IF_ERROR(write(positions));
  directory_.Flushed(newer);
  if (directory_.newer() == 0) note_->Remove(this);
  flushed += positions.size();
  return positions.size();
}

void DeviceCache::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.Clear();
  moving_ = 0;
  moved_.notify_all();
  note_->Remove(this);
}

DeviceCaches& DeviceCaches::Get() {
  static auto* const caches = new DeviceCaches;  // kernels may run while the process exits
  return *caches;
}

int64_t DeviceCaches::Create(const SlotDirectory::Options& options, const std::string& table) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::weak_ptr<NewerNote>& known = notes_[table];
  std::shared_ptr<NewerNote> note = known.lock();
  if (note == nullptr) known = note = std::make_shared<NewerNote>(table);
  auto cache = std::make_shared<DeviceCache>(options, table, std::move(note));
  caches_[next_] = std::move(cache);
  return next_++;
}

Result<std::shared_ptr<DeviceCache>> DeviceCaches::Find(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = caches_.find(number);
  if (entry == caches_.end()) {
    return Error(Code::kNotFound, "device cache ", number,
                 " does not exist in this process, because its layer was deleted. Build the model "
                 "again, and call its functions");
  }
  return entry->second;
}

Result<std::shared_ptr<DeviceCache>> DeviceCaches::Of(const KernelContext& context, int input) {
  TSPS_ASSIGN_OR_RETURN(const int64_t number, context.Scalar<int64_t>(input, "cache"));
  return Find(number);
}

void DeviceCaches::Remove(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = caches_.find(number);
  if (entry == caches_.end()) return;
  entry->second->queue().Close();
  removed_.looked_up += entry->second->looked_up;
  removed_.missed += entry->second->missed;
  caches_.erase(entry);
  for (auto note = notes_.begin(); note != notes_.end();) {
    note = note->second.expired() ? notes_.erase(note) : std::next(note);
  }
}

DeviceCaches::Totals DeviceCaches::totals() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Totals totals = removed_;
  for (const auto& [number, cache] : caches_) {
    totals.looked_up += cache->looked_up;
    totals.missed += cache->missed;
  }
  return totals;
}

}  // namespace tsps
