#include "core/tier/compaction.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/fault_point.h"
#include "core/tier/record_index_layout.h"

namespace tsps {
namespace {

constexpr double kSlack = 1.45;

}  // namespace

uint32_t Compaction::Choose(const std::vector<uint32_t>& live) const {
  if (index_.live() == 0) return UINT32_MAX;
  const RecordLayout& layout = log_.layout();
  const double needed = static_cast<double>(index_.live() * layout.record_bytes);
  if (static_cast<double>(log_.bytes()) <=
      kSlack * needed + 2 * static_cast<double>(layout.file_end())) {
    return UINT32_MAX;
  }
  uint32_t best = UINT32_MAX, least = UINT32_MAX;
  for (const uint32_t file : log_.Files()) {
    const uint32_t live_here = file < live.size() ? live[file] : 0;
    if (file == log_.current_file() || live_here >= least || read_.count(file) != 0) continue;
    best = file;
    least = live_here;
  }
  return best;
}

Result<Compaction::Slice> Compaction::Read(uint32_t file, uint32_t slot, uint32_t n) const {
  Slice slice{{}, {}, file, slot + n};
  slice.copies.reserve(n);
  std::vector<uint32_t> places;
  bool searched = true;
  TSPS_ASSIGN_OR_RETURN(
      slice.records,
      log_.ReadSlots(file, slot, n, [&](uint32_t place, int64_t key, const char* payload) {
        searched = searched && index_.Find(TagOf(key, index_.seed()), &places);
        if (!searched || std::find(places.begin(), places.end(), place) == places.end()) return;
        slice.copies.push_back({place, key, payload});
      }));
  if (!searched) return Error(Code::kUnavailable, "the index of records is being changed");
  return slice;
}

void Compaction::ReadAhead(size_t bytes, const std::vector<uint32_t>& live) {
  if (ready_ || reading_.valid()) return;
  if (file_ == UINT32_MAX) {
    file_ = Choose(live);
    slot_ = 0;
  }
  if (file_ == UINT32_MAX) return;
  const RecordLayout& layout = log_.layout();
  const size_t left = layout.records_per_file - slot_;
  const auto n = static_cast<uint32_t>(std::clamp<size_t>(bytes / layout.record_bytes, 1, left));
  try {
    if (TSPS_FAULT_FAILS("thread")) throw std::system_error(errno, std::generic_category());
    reading_ = std::async(std::launch::async,
                          [this, file = file_, slot = slot_, n] { return Read(file, slot, n); });
  } catch (const std::system_error&) {
    // No thread can be started now. The next call tries again.
  }
}

void Compaction::Await() {
  if (reading_.valid()) reading_.wait();
}

const Compaction::Slice* Compaction::Ready() {
  if (!ready_) {
    if (!reading_.valid() ||
        reading_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return nullptr;
    }
    Result<Slice> slice = reading_.get();
    if (!slice.ok()) {
      if (slice.status().code() == Code::kUnavailable) return nullptr;  // ReadAhead tries again
      read_.insert(file_);  // a lookup of one of its rows reports the error
      file_ = UINT32_MAX;
      return nullptr;
    }
    slice_ = std::move(*slice);
    ready_ = true;
  }
  return &slice_;
}

void Compaction::Done(bool copied) {
  if (!ready_ || !copied) return;
  ready_ = false;
  slot_ = slice_.end_slot;
  slice_ = Slice();
  if (slot_ < log_.layout().records_per_file) return;
  const uint32_t file = std::exchange(file_, UINT32_MAX);
  try {
    read_.insert(file);
  } catch (const std::bad_alloc&) {
    // The file may be read once more. It has no live records by then.
  }
}

}  // namespace tsps
