// Scans of rows in memory.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/base/fault_point.h"
#include "core/base/prefetch.h"
#include "core/base/racy_copy.h"
#include "core/group/scan.h"

namespace tsps {
namespace {

constexpr size_t kCopyGrain = 1024;  // rows
constexpr size_t kScanAhead = 16;

}  // namespace

Status Scan::CheckWanted(const Part& part, char* const* planes) const {
  for (size_t p = 0; p < part.list->planes.size(); ++p) {
    if (planes[p] == nullptr || (part.wanted >> p & 1) != 0) continue;
    return Error(Code::kInvalidArgument, "a scan of ", group_.path(), " does not read plane '",
                 part.list->planes[p].name, "', because it was begun without that plane");
  }
  return Status();
}

Status Scan::Copy(int table, const uint32_t* rows, size_t n, char* const* planes,
                  Executor& executor) {
  Part& part = PartOf(table);
  TSPS_RETURN_IF_ERROR(CheckWanted(part, planes));
  if (!announced()) return CopyInPlace(table, rows, n, planes);
  const size_t t = NumberOf(part);
  std::mutex mutex;
  std::vector<Saved> saved;
  executor.ParallelFor(n, kCopyGrain, [&](size_t begin, size_t end) {
    for (size_t p = 0; p < part.list->planes.size(); ++p) {
      if (planes[p] == nullptr) continue;
      const Plane& plane = part.list->planes[p];
      char* to = planes[p] + begin * plane.row_bytes;
      for (size_t i = begin; i < end; ++i, to += plane.row_bytes) {
        if (i + kScanAhead < end && rows[i + kScanAhead] != kAbsentRow) {
          Prefetch(plane.row(rows[i + kScanAhead]), plane.row_bytes);
        }
        if (rows[i] != kAbsentRow) RacyRead(to, plane.row(rows[i]), plane.row_bytes);
      }
    }
    // A row that was read while it was being written has its bit by now.
#ifndef __SANITIZE_THREAD__
    std::atomic_thread_fence(std::memory_order_acquire);
#endif
    std::vector<Saved> saved_of_range;
    for (size_t i = begin; i < end; ++i) {
      if (rows[i] != kAbsentRow && file().Saved(t, rows[i])) saved_of_range.push_back({rows[i], i});
    }
    const std::lock_guard<std::mutex> lock(mutex);
    saved.insert(saved.end(), saved_of_range.begin(), saved_of_range.end());
  });
  return CopyImages(part, saved, planes);
}

Status Scan::CopyNext(Part& part, size_t n, char* const* planes) {
  if (!announced()) {
    std::vector<uint32_t> rows(n);
    std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(part.next));
    return CopyInPlace(part.table, rows.data(), n, planes);
  }
  const auto first = static_cast<uint32_t>(part.next);
  for (size_t p = 0; p < part.list->planes.size(); ++p) {
    const Plane& plane = part.list->planes[p];
    if (planes[p] != nullptr) RacyRead(planes[p], plane.row(first), n * plane.row_bytes);
  }
#ifndef __SANITIZE_THREAD__
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  std::vector<Saved> saved;
  file().ForEachSaved(NumberOf(part), first, n,
                      [&](uint32_t row) { saved.push_back({row, row - first}); });
  return CopyImages(part, saved, planes);
}

Status Scan::CopyImages(Part& part, const std::vector<Saved>& saved, char* const* planes) {
  TSPS_RETURN_IF_ERROR(Check());  // then every row that was written since has its bit
  const Status taken = TakeImages();
  if (!taken.ok()) {
    TSPS_RETURN_IF_ERROR(Check());  // the writer may have removed them meanwhile
    return taken;
  }
  for (const auto& [row, at] : saved) {
    const auto entry = part.images.find(row);
    if (entry == part.images.end()) {
      return Damaged(file().file().path(), "no image of row ", row);
    }
    const char* image = entry->second;
    for (size_t p = 0; p < part.list->planes.size(); ++p) {
      const size_t bytes = part.list->planes[p].row_bytes;
      if ((part.wanted >> p & 1) == 0) continue;
      if (planes[p] != nullptr) std::memcpy(planes[p] + at * bytes, image, bytes);
      image += bytes;
    }
  }
  return Status();
}

Status Scan::CheckLive(const Part& part) const {
  const uint64_t counted = StateOf(part.table).live;
  if (part.live == counted || TSPS_FAULT_OFF("damage")) return Status();
  return Damaged("table " + part.files->folder(), part.live, " rows with a key, ", counted,
                 " counted");
}

void Scan::SkipTo(int table, uint64_t row) {
  Part& part = PartOf(table);
  part.skipped = true;
  part.next = std::max(part.next, std::min(row, RowNumbers(table)));
  if (announced()) file().passed(NumberOf(part)).store(part.next, std::memory_order_release);
}

Result<size_t> Scan::Next(int table, size_t n, int64_t* keys, char* const* planes) {
  Part& part = PartOf(table);
  const PlaneList& list = *part.list;
  const size_t n_planes = list.planes.size();
  const size_t changed_plane = list.trained() + 1;
  TSPS_RETURN_IF_ERROR(CheckWanted(part, planes));
  std::vector<uint32_t> changed;
  size_t live = 0;
  while (live < n && part.next < StateOf(table).rows) {
    const size_t m = std::min<uint64_t>(n - live, StateOf(table).rows - part.next);
    changed.resize(m);
    char* to[kMaxPlanes] = {};
    for (size_t p = 0; p < n_planes; ++p) {
      if (planes[p] != nullptr) to[p] = planes[p] + live * list.planes[p].row_bytes;
    }
    char* const wanted_changed = to[changed_plane];
    char* const wanted_keys = to[list.trained()];
    to[changed_plane] = reinterpret_cast<char*>(changed.data());
    to[list.trained()] = reinterpret_cast<char*>(keys + live);
    TSPS_RETURN_IF_ERROR(CopyNext(part, m, to));
    if (wanted_changed != nullptr) {
      std::memcpy(wanted_changed, changed.data(), m * sizeof(uint32_t));
    }
    if (wanted_keys != nullptr) std::memcpy(wanted_keys, keys + live, m * sizeof(int64_t));
    to[changed_plane] = wanted_changed;
    to[list.trained()] = wanted_keys;
    size_t kept = 0;
    for (size_t i = 0; i < m; ++i) {
      if (changed[i] == kFreeRow) continue;
      if (kept != i) {
        keys[live + kept] = keys[live + i];
        for (size_t p = 0; p < n_planes; ++p) {
          const size_t bytes = list.planes[p].row_bytes;
          if (to[p] != nullptr) std::memcpy(to[p] + kept * bytes, to[p] + i * bytes, bytes);
        }
      }
      ++kept;
    }
    live += kept;
    part.next += m;
    part.live += kept;
    // This comes after all reads of these rows.
    if (announced()) file().passed(NumberOf(part)).store(part.next, std::memory_order_release);
  }
  if (live == n) return live;
  if (part.skipped) return live;
  TSPS_RETURN_IF_ERROR(CheckLive(part));
  char* to[kMaxPlanes] = {};
  for (size_t p = 0; p < n_planes; ++p) {
    if (planes[p] != nullptr) to[p] = planes[p] + live * list.planes[p].row_bytes;
  }
  TSPS_ASSIGN_OR_RETURN(const size_t on_disk, NextOnDisk(table, n - live, keys + live, to));
  return live + on_disk;
}

}  // namespace tsps
