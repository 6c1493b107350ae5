// Growth of a record index: the writer copies a segment to new pages, or splits it. Readers find
// the old entries until one store names the new pages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/fault_point.h"
#include "core/tier/record_index.h"
#include "core/tier/record_index_access.h"

namespace tsps {

using namespace record_index;  // NOLINT: only this class uses these functions

namespace {

// Leaves 5 % of free space, so that a rebuilt segment is not rebuilt again soon.
uint32_t PagesFor(uint32_t entries) {
  uint32_t pages = kMinPages;
  while (pages < kMaxPages && SegmentLimit(pages) / 20 * 19 < entries) ++pages;
  return pages;
}

}  // namespace

Status RecordIndex::Reserve(const uint64_t* tags, size_t n) {
  for (;;) {
    // The number of tags that each segment gets. Splits change it.
    std::vector<std::pair<uint32_t, uint32_t>> coming;
    {
      std::vector<uint32_t> numbers(n);
      for (size_t i = 0; i < n; ++i) SegmentOf(tags[i], &numbers[i]);
      std::sort(numbers.begin(), numbers.end());
      for (const uint32_t number : numbers) {
        if (coming.empty() || coming.back().first != number) coming.push_back({number, 0});
        ++coming.back().second;
      }
    }
    bool grown = false;
    for (const auto& [number, count] : coming) {
      const uint32_t pages = StateOf(number).n_pages;
      const Counts& counts = counts_[number];
      if (counts.live + counts.removed + count <= SegmentLimit(pages)) continue;
      grown = true;
      const bool full = counts.live + count > SegmentLimit(kMaxPages);
      TSPS_RETURN_IF_ERROR(full ? Split(number) : Rebuild(number, count));
    }
    if (!grown) return {};
  }
}

Status RecordIndex::TakePages(uint32_t n, uint32_t* pages) {
  IndexHeader& counts = header();
  while (free_pages_.size() < n) {
    const uint32_t number = counts.n_pages;
    TSPS_RETURN_IF_ERROR(pages_->Reserve((size_t{number} + 1) * kPageBytes));
    if (uses_ != nullptr) {
      TSPS_RETURN_IF_ERROR(uses_->Reserve((size_t{number} + 1) * kPageUsesBytes));
    }
    Store(counts.n_pages, number + 1);
    free_pages_.push_back(number);
  }
  for (uint32_t i = 0; i < n; ++i) {
    pages[i] = free_pages_.back();
    free_pages_.pop_back();
    for (uint32_t& place : page(pages[i]).places) Store(place, kNoRecord);
  }
  return {};
}

Status RecordIndex::TakeSegment(uint32_t* number) {
  IndexHeader& counts = header();
  if (free_segments_.empty()) {
    const uint32_t next = counts.n_segments;
    TSPS_RETURN_IF_ERROR(segments_->Reserve((size_t{next} + 1) * sizeof(IndexSegment)));
    Store(counts.n_segments, next + 1);
    counts_.push_back({});
    free_segments_.push_back(next);
  }
  *number = free_segments_.back();
  free_segments_.pop_back();
  std::memset(&segment(*number), 0, sizeof(IndexSegment));
  counts_[*number] = {};
  return {};
}

void RecordIndex::GivePages(const State& state) {
  free_pages_.insert(free_pages_.end(), state.pages, state.pages + state.n_pages);
}

uint32_t RecordIndex::CountMatching(const State& from, const State& to) const {
  uint32_t count = 0;
  ForEachEntry(
      from, [&](uint32_t number, uint32_t at) { count += Matches(TagAt(page(number), at), to); });
  return count;
}

RecordIndex::Counts RecordIndex::Copy(const State& from, const State& to) const {
  Counts counts;
  ForEachEntry(from, [&](uint32_t number, uint32_t at) {
    const uint64_t tag = TagAt(page(number), at);
    if (!Matches(tag, to)) return;
    Put(to, tag, page(number).places[at], uses_ == nullptr ? RecordUse() : use(number, at));
    ++counts.live;
  });
  return counts;
}

Status RecordIndex::Rebuild(uint32_t number, uint32_t coming) {
  IndexSegment& rebuilt = segment(number);
  const State old = StateOf(number);
  State& next = rebuilt.states[~rebuilt.moves & 1];
  next = old;
  next.n_pages = PagesFor(counts_[number].live + coming);
  TSPS_RETURN_IF_ERROR(TakePages(next.n_pages, next.pages));
  counts_[number] = Copy(old, next);
  TSPS_FAULT_POINT("record_index_copied");
  Move(rebuilt);
  GivePages(old);
  return {};
}

Status RecordIndex::Split(uint32_t number) {
  const uint32_t depth = StateOf(number).depth;
  if (depth == header().depth) TSPS_RETURN_IF_ERROR(DoubleDirectory());
  uint32_t sibling;
  TSPS_RETURN_IF_ERROR(TakeSegment(&sibling));  // may grow `segments_`, but does not move it
  IndexSegment& split = segment(number);
  const State old = StateOf(number);
  State low = {depth + 1, 2 * old.pattern, sibling, 0, {}};
  State high = {depth + 1, 2 * old.pattern + 1, number, 0, {}};
  high.n_pages = PagesFor(CountMatching(old, high));
  low.n_pages = PagesFor(counts_[number].live - CountMatching(old, high));
  Status status = TakePages(low.n_pages, low.pages);
  if (status.ok()) {
    status = TakePages(high.n_pages, high.pages);
    if (!status.ok()) GivePages(low);
  }
  if (!status.ok()) {
    free_segments_.push_back(sibling);
    return status;
  }
  counts_[sibling] = Copy(old, high);
  const Counts counts = Copy(old, low);
  segment(sibling).states[0] = high;
  split.states[~split.moves & 1] = low;
  TSPS_FAULT_POINT("record_index_split_copied");
  Move(split);
  TSPS_FAULT_POINT("record_index_split");
  counts_[number] = counts;
  uint32_t* entries = directory(header().depth);
  const uint32_t shift = header().depth - high.depth;
  for (uint32_t i = 0; i < uint32_t{1} << shift; ++i) {
    Store(entries[(high.pattern << shift) + i], sibling);
  }
  GivePages(old);
  return {};
}

Status RecordIndex::DoubleDirectory() {
  const uint32_t depth = header().depth;
  if (depth == kMaxIndexDepth) {
    return Error(Code::kResourceExhausted, directory_->path(), ": an index of ", live_,
                 " records cannot grow further. Nothing was changed. Give the table more "
                 "memory, or shard it over more nodes");
  }
  TSPS_RETURN_IF_ERROR(directory_->Reserve(kPageBytes + (size_t{16} << depth)));
  const uint32_t n = Mask(depth) + 1;
  uint32_t* doubled = directory(depth + 1);
  for (uint32_t i = 0; i < n; ++i) doubled[2 * i] = doubled[2 * i + 1] = directory(depth)[i];
  Store(header().depth, depth + 1);
  return {};
}

}  // namespace tsps
