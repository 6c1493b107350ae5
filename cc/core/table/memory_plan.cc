#include "core/table/memory_plan.h"

#include <algorithm>

#include "core/tier/record_file.h"

namespace tsps {
namespace {

// Bytes per row in memory in addition to its planes: index entries (16 bytes, in segments that are
// two fifths to four fifths full), free row, count of uses, the step for which it is announced, and
// its part of a step's undo log.
constexpr uint64_t kRowBytes = 58;
constexpr uint64_t kIndexBytes = 12;  // per row that is or was on disk
constexpr uint64_t kUseBytes = 20;    // in addition, for its key and use
// If any number of rows is allowed, places of p bytes take p of p + 36 parts of the memory: a
// quarter, or 47 % with uses. So there are equally many places per row in memory.
constexpr uint64_t kPlaceParts = 36;
// Memory of reads and writes, in buffers (RecordLayout::buffer_bytes). Two appends and a slice of
// compaction take 3, queued copies 4. The rest, 5 MiB in a large table, is for the process's
// threads that read (tier/io_threads.h).
constexpr uint64_t kBuffers = 12;
// A part of the rest stays free, up to a maximum: for the margin within a memory limit
// (os/storage_budget.h), page tables, and what malloc keeps.
constexpr uint64_t kSpareShare = 32;
constexpr uint64_t kMostSpare = 32u << 20;
// A sixth of what is left holds records that were read: those of a step, and staged ones.
constexpr uint64_t kCacheShare = 6;
constexpr uint64_t kFileShare = 16;  // of the memory
constexpr uint64_t kMostFileBytes = 64u << 20;
constexpr uint64_t kLeastFileBytes = 1u << 20;

uint64_t BufferBytes(const TieredStorage& storage) {
  if (storage.buffers > 0) return storage.buffers;
  return kBuffers * RecordLayout::BufferBytesFor(FileBytes(storage));
}

// Returns the memory of which `usable` bytes are left for other things than buffers. They grow with
// the memory, and more slowly.
uint64_t WithBuffers(uint64_t usable) {
  TieredStorage storage{"", usable};
  while (storage.memory < usable + BufferBytes(storage)) {
    storage.memory = usable + BufferBytes(storage);
  }
  return storage.memory;
}

uint64_t PlaceBytes(const RowCost& row) { return kIndexBytes + (row.has_use ? kUseBytes : 0); }

}  // namespace

RowCost::RowCost(const PlaneList& list)
    : RowCost(RowBytes(list, list.planes.size()), list.records_use()) {}

uint64_t FileBytes(const TieredStorage& storage) {
  if (storage.file_bytes > 0) return storage.file_bytes;
  return std::clamp(storage.memory / kFileShare, kLeastFileBytes, kMostFileBytes);
}

MemoryPlan PlanMemory(const TieredStorage& storage, const RowCost& row, uint64_t most_rows) {
  MemoryPlan plan;
  uint64_t usable = storage.memory - std::min(storage.memory, BufferBytes(storage));
  usable -= std::min(usable / kSpareShare, kMostSpare);
  plan.cache_bytes = usable / kCacheShare;
  const uint64_t left = usable - plan.cache_bytes;
  const uint64_t each = row.bytes + kRowBytes;
  // A row in memory keeps its place in the index of the rows on disk, because all rows may have to
  // move to the disk (GroupWriter::BindOptimizer).
  const uint64_t index = most_rows == 0 ? left / (PlaceBytes(row) + kPlaceParts) * PlaceBytes(row)
                                        : std::min(most_rows * PlaceBytes(row), left);
  plan.rows = (left - index) / each;
  plan.rows_in_all = index / PlaceBytes(row);
  if (most_rows > 0) plan.rows = std::min(plan.rows, most_rows);
  return plan;
}

uint64_t MemoryFor(uint64_t rows, const RowCost& row, uint64_t most_rows) {
  const uint64_t each = row.bytes + kRowBytes;
  const uint64_t left = most_rows == 0
                            ? (rows * each / kPlaceParts + 2) * (kPlaceParts + PlaceBytes(row))
                            : most_rows * PlaceBytes(row) + rows * each;
  const uint64_t usable = left / (kCacheShare - 1) * kCacheShare + kCacheShare * kCacheShare;
  return WithBuffers(usable + std::min(usable / (kSpareShare - 1) + 1, kMostSpare));
}

}  // namespace tsps
