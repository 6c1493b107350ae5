#include "core/tier/compaction.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/fault_point.h"
#include "core/base/limits.h"
#include "core/tier/record_index_layout.h"

namespace tsps {
namespace {

constexpr double kSlack = 1.4;
constexpr size_t kSpareFiles = 3;  // those that are written, and one that is emptied
constexpr size_t kMostAllowed = size_t{64} << 20;
constexpr size_t kQueuedBuffers = 4;  // the most memory of queued copies, in buffers
constexpr uint32_t kChoicesAfterError = 16;

// Sets a flag while it exists.
class Writing {
 public:
  explicit Writing(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true); }
  ~Writing() { flag_.store(false); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

Compaction::Compaction(RecordLog& log, const RecordIndex& index, RecordFiles& files)
    : log_(log),
      index_(index),
      files_(files),
      appender_(log, files, RecordKind::kCopies),
      reserve_(log.folder()) {}

Compaction::~Compaction() {
  ending_.store(true);
  Await();
}

size_t Compaction::Excess() const {
  const RecordLayout& layout = log_.layout();
  const auto live = static_cast<double>(index_.live() * layout.record_bytes);
  const auto may_have = static_cast<size_t>(kSlack * live) + kSpareFiles * layout.file_end();
  const uint64_t bytes = files_.bytes();
  return bytes - std::min<uint64_t>(bytes, may_have);
}

void Compaction::EndRound() {
  const Round round = running_.get();
  allowed_ -= std::min(allowed_, round.bytes_read);
  status_ = round.status;
  const Code code = status_.code();
  if (code != Code::kOk && code != Code::kUnavailable && code != Code::kResourceExhausted) {
    failed_[to_read_[reading_]] = kChoicesAfterError;
    ++reading_;
    slot_ = 0;
  }
  if (reading_ < to_read_.size()) return;
  read_.insert(to_read_.begin(), to_read_.end());
  to_read_.clear();
  reading_ = 0;
}

void Compaction::ChooseFiles(const std::function<bool(uint32_t)>& may) {
  if (!to_read_.empty()) return;
  const size_t excess = Excess();
  if (excess == 0) {
    allowed_ = 0;
    return;
  }
  const size_t most = (allowed_ + log_.layout().file_end() - 1) / log_.layout().file_end();
  to_read_ = files_.Emptiest(excess, most, [&](uint32_t number) {
    return may(number) && number != appender_.current_file() && read_.count(number) == 0 &&
           failed_.count(number) == 0;
  });
  slot_ = 0;
  for (auto failed = failed_.begin(); failed != failed_.end();) {
    failed = --failed->second == 0 ? failed_.erase(failed) : std::next(failed);
  }
}

void Compaction::Allow(size_t bytes, const std::function<bool(uint32_t)>& may) {
  allowed_ = std::min(allowed_ + bytes, kMostAllowed);
  if (running_.valid()) {
    if (running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    EndRound();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if ((queue_.size() - next_) * sizeof(Copy) > kQueuedBuffers * log_.layout().buffer_bytes())
      return;
    // A file that was read has no live records now, or needs another look.
    if (queue_.size() == next_) read_.clear();
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }
  ChooseFiles(may);
  if (to_read_.empty()) return;
  try {
    if (TSPS_FAULT_FAILS("thread")) throw std::system_error(errno, std::generic_category());
    running_ = std::async(std::launch::async, [this, n = allowed_] { return Copies(n); });
  } catch (const std::system_error&) {
    // No thread can be started now. The next call tries again.
  }
}

void Compaction::Await() {
  if (running_.valid()) running_.wait();
}

Compaction::Round Compaction::Copies(size_t bytes) {
  const RecordLayout& layout = log_.layout();
  if (files_.count() > 2 * kSpareFiles) reserve_.Keep(ReserveBytes());
  Round round;
  while (!ending_.load() && round.bytes_read < bytes && reading_ < to_read_.size()) {
    const uint32_t file = to_read_[reading_];
    const size_t slice = std::min(layout.buffer_bytes(), bytes - round.bytes_read);
    const auto slots = static_cast<uint32_t>(
        std::clamp<size_t>(slice / layout.record_bytes, 1, layout.records_per_file - slot_));
    round.status = CopySlice(file, slots);
    if (round.status.code() == Code::kResourceExhausted) {
      const std::string space = reserve_.Take();
      if (!space.empty()) round.status = CopySliceInto(space, file, slots);
    }
    if (!round.status.ok()) return round;
    round.bytes_read += slots * layout.record_bytes;
    slot_ += slots;
    if (slot_ < layout.records_per_file) continue;
    ++reading_;
    slot_ = 0;
  }
  return round;
}

size_t Compaction::ReserveBytes() const {
  return (log_.layout().file_end() + kPageBytes - 1) / kPageBytes * kPageBytes;
}

void Compaction::KeepReserve() {
  if (running_.valid() && running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return;
  if (reserve_.taken()) reserve_.Keep(ReserveBytes());
}

Status Compaction::CopySliceInto(const std::string& space, uint32_t file, uint32_t slots) {
  TSPS_RETURN_IF_ERROR(appender_.BeginFileIn(space));
  return CopySlice(file, slots);
}

Status Compaction::CopySlice(uint32_t file, uint32_t slots) {
  std::vector<Copy> copies;
  std::vector<int64_t> keys;
  std::vector<const char*> payloads;
  std::vector<uint32_t> places;
  bool searched = true;
  const auto look = [&](uint32_t place, int64_t key, const char* payload) {
    const uint64_t tag = TagOf(key, index_.seed());
    searched = searched && index_.Find(tag, &places);
    if (!searched || std::find(places.begin(), places.end(), place) == places.end()) return;
    copies.push_back({tag, place, kNoRecord});
    keys.push_back(key);
    payloads.push_back(payload);
  };
  TSPS_ASSIGN_OR_RETURN(const PageBuffer records, log_.ReadSlots(file, slot_, slots, look));
  if (!searched) return Error(Code::kUnavailable, "the index of records is being changed");
  return Write(keys, payloads, &copies);
}

Status Compaction::Write(const std::vector<int64_t>& keys, const std::vector<const char*>& payloads,
                         std::vector<Copy>* copies) {
  const RecordLayout& layout = log_.layout();
  std::vector<uint32_t> places(keys.size());
  const auto fill = [&](size_t i, char* payload) {
    std::memcpy(payload, payloads[i], layout.payload_bytes);
    return keys[i];
  };
  // A file that has just got copies must not be taken for an empty one before they are queued.
  const Writing writing(writing_);
  TSPS_RETURN_IF_ERROR(appender_.Append(keys.size(), fill, places.data()));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < places.size(); ++i) {
    (*copies)[i].to = places[i];
    ++queued_[layout.file_of(places[i])];
  }
  queue_.insert(queue_.end(), copies->begin(), copies->end());
  return {};
}

bool Compaction::HasQueued() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_ < queue_.size();
}

void Compaction::Apply(const std::function<bool(const Copy& copy)>& apply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (next_ < queue_.size() && apply(queue_[next_])) {
    const auto file = queued_.find(log_.layout().file_of(queue_[next_].to));
    if (--file->second == 0) queued_.erase(file);
    ++next_;
  }
  if (next_ < queue_.size()) return;
  queue_.clear();
  next_ = 0;
}

bool Compaction::IsUsing(uint32_t number) const {
  const auto reading = to_read_.begin() + static_cast<std::ptrdiff_t>(reading_.load());
  const bool reads = std::find(reading, to_read_.end(), number) != to_read_.end();
  const std::lock_guard<std::mutex> lock(mutex_);
  return reads || number == appender_.current_file() || queued_.count(number) != 0 ||
         (writing_.load() && files_.KindOf(number) == RecordKind::kCopies);
}

}  // namespace tsps
