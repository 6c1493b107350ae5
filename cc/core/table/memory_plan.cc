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

}  // namespace

uint64_t FileBytes(const TieredStorage& storage) {
  if (storage.file_bytes > 0) return storage.file_bytes;
  return std::clamp(storage.memory / kFileShare, kLeastFileBytes, kMostFileBytes);
}

MemoryPlan PlanMemory(const TieredStorage& storage, uint64_t row_bytes, uint64_t most_rows) {
  MemoryPlan plan;
  uint64_t usable = storage.memory - std::min(storage.memory, BufferBytes(storage));
  usable -= std::min(usable / kSpareShare, kMostSpare);
  plan.cache_bytes = usable / kCacheShare;
  const uint64_t left = usable - plan.cache_bytes;
  const uint64_t each = row_bytes + kRowBytes;
  // A row in memory keeps its place in the index of the rows on disk, because all rows may have to
  // move to the disk (GroupWriter::BindOptimizer).
  const uint64_t index = most_rows == 0 ? left / 4 : std::min(most_rows * kIndexBytes, left);
  plan.rows = (left - index) / each;
  plan.rows_in_all = index / kIndexBytes;
  if (most_rows > 0) plan.rows = std::min(plan.rows, most_rows);
  return plan;
}

uint64_t MemoryFor(uint64_t rows, uint64_t row_bytes, uint64_t most_rows) {
  const uint64_t each = row_bytes + kRowBytes;
  const uint64_t left =
      most_rows == 0 ? (rows * each + 2) / 3 * 4 + 16 : most_rows * kIndexBytes + rows * each;
  const uint64_t usable = left / (kCacheShare - 1) * kCacheShare + kCacheShare * kCacheShare;
  return WithBuffers(usable + std::min(usable / (kSpareShare - 1) + 1, kMostSpare));
}

}  // namespace tsps
