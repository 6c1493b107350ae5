#include "core/tier/record_reads.h"

#include <algorithm>

#include "core/base/limits.h"

namespace tsps {
namespace {

constexpr size_t kGapPages[] = {0, 1, 2, 4, 8, 16};

struct Pages {
  size_t begin, end;
};

Pages PagesOf(const RecordLayout& layout, uint32_t slot) {
  const size_t begin = layout.offset(slot) / kPageBytes * kPageBytes;
  const size_t end = layout.offset(slot) + layout.record_bytes;
  return {begin, (end + kPageBytes - 1) / kPageBytes * kPageBytes};
}

}  // namespace

std::vector<RecordRead> PlanReads(const RecordLayout& layout, const uint32_t* places, size_t n,
                                  const ReadCosts& costs) {
  std::vector<RecordRead> reads;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t file = layout.file_of(places[i]);
    const Pages pages = PagesOf(layout, layout.slot_of(places[i]));
    if (!reads.empty()) {
      RecordRead& last = reads.back();
      if (last.file == file && pages.begin <= last.offset + last.bytes + costs.gap_bytes &&
          pages.end - last.offset <= costs.max_bytes) {
        last.bytes = std::max(last.bytes, pages.end - last.offset);
        ++last.n;
        continue;
      }
    }
    reads.push_back({file, pages.begin, pages.end - pages.begin, i, 1});
  }
  return reads;
}

ReadCosts CheapestReads(const RecordLayout& layout, const uint32_t* places, size_t n,
                        size_t read_bytes, size_t max_bytes) {
  size_t costs[std::size(kGapPages)] = {};
  // The read that is being planned, for each gap.
  struct {
    uint32_t file = 0;
    size_t begin = 0, end = 0;
  } last[std::size(kGapPages)];
  for (size_t i = 0; i < n; ++i) {
    const uint32_t file = layout.file_of(places[i]);
    const Pages pages = PagesOf(layout, layout.slot_of(places[i]));
    for (size_t g = 0; g < std::size(kGapPages); ++g) {
      auto& read = last[g];
      if (read.end > 0 && read.file == file &&
          pages.begin <= read.end + kGapPages[g] * kPageBytes &&
          pages.end - read.begin <= max_bytes) {
        const size_t end = std::max(read.end, pages.end);
        costs[g] += end - read.end;
        read.end = end;
      } else {
        costs[g] += read_bytes + pages.end - pages.begin;
        read = {file, pages.begin, pages.end};
      }
    }
  }
  const size_t best =
      static_cast<size_t>(std::min_element(std::begin(costs), std::end(costs)) - costs);
  return {kGapPages[best] * kPageBytes, max_bytes};
}

}  // namespace tsps
