#include "core/tier/record_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/prefetch.h"
#include "core/base/racy_copy.h"

namespace tsps {
namespace {

std::string CachePath(const std::string& folder) { return folder + "/records.cache"; }

}  // namespace

size_t RecordCache::SetsFor(const RecordLayout& layout, size_t bytes) {
  return bytes / (sizeof(Set) + kWays * layout.record_bytes);
}

size_t RecordCache::BytesOf(const RecordLayout& layout, size_t sets) {
  return sets * (sizeof(Set) + kWays * layout.record_bytes);
}

Result<std::unique_ptr<RecordCache>> RecordCache::Create(const std::string& folder,
                                                         const RecordLayout& layout, size_t bytes) {
  const size_t sets = SetsFor(layout, bytes);
  std::unique_ptr<MappedFile> file;
  if (sets > 0) {
    const size_t size = BytesOf(layout, sets);
    TSPS_ASSIGN_OR_RETURN(file, MappedFile::Create(CachePath(folder), size, size));
  }
  return std::unique_ptr<RecordCache>(new RecordCache(std::move(file), layout, sets));
}

Result<std::unique_ptr<RecordCache>> RecordCache::Open(const std::string& folder,
                                                       const RecordLayout& layout, size_t bytes) {
  const size_t sets = SetsFor(layout, bytes);
  std::unique_ptr<MappedFile> file;
  if (sets > 0) {
    const size_t size = BytesOf(layout, sets);
    TSPS_ASSIGN_OR_RETURN(file, MappedFile::Open(CachePath(folder), size, size));
  }
  std::unique_ptr<RecordCache> cache(new RecordCache(std::move(file), layout, sets));
  // On a read-only file system the cache is read, and Put does nothing.
  cache->writable_ = sets > 0 && cache->file_->MakeWritable().ok();
  return cache;
}

std::array<RecordCache::Set*, 2> RecordCache::SetsOf(uint32_t place) const {
  Set* const sets = reinterpret_cast<Set*>(file_->data());
  // The places of one append follow each other, so place % sets_ spreads them evenly.
  return {sets + place % sets_, sets + HashKey(place, 0) % sets_};
}

char* RecordCache::Slot(const Set& set, size_t way) const {
  const auto number = static_cast<size_t>(&set - reinterpret_cast<const Set*>(file_->data()));
  return file_->data() + sets_ * sizeof(Set) + (number * kWays + way) * layout_.record_bytes;
}

void RecordCache::Prefetch(uint32_t place) const {
  if (file_ == nullptr) return;
  for (const Set* set : SetsOf(place)) tsps::Prefetch(set->places, sizeof(set->places));
}

const char* RecordCache::SlotOf(uint32_t place) const {
  for (const Set* set : SetsOf(place)) {
    for (size_t way = 0; way < kWays; ++way) {
      if (__atomic_load_n(&set->places[way], __ATOMIC_RELAXED) == place + 1) {
        return Slot(*set, way);
      }
    }
  }
  return nullptr;
}

bool RecordCache::Has(uint32_t place) const { return file_ != nullptr && SlotOf(place) != nullptr; }

void RecordCache::PrefetchRecord(uint32_t place) const {
  if (file_ == nullptr) return;
  const char* const slot = SlotOf(place);
  if (slot != nullptr) tsps::Prefetch(slot, layout_.record_bytes);
}

bool RecordCache::Find(uint32_t place, char* record) const {
  if (file_ == nullptr) return false;
  for (const Set* set : SetsOf(place)) {
    for (size_t way = 0; way < kWays; ++way) {
      if (__atomic_load_n(&set->places[way], __ATOMIC_ACQUIRE) != place + 1) continue;
      RacyRead(record, Slot(*set, way), layout_.record_bytes);
      if (layout_.Sealed(place, record)) return true;
    }
  }
  return false;
}

void RecordCache::Put(uint32_t place, const char* record) {
  if (file_ == nullptr || !writable_) return;
  const std::array<Set*, 2> sets = SetsOf(place);
  // Uses the set with more free ways, which keeps both sets from filling up for longest.
  Set* set = nullptr;
  size_t way = 0, most = 0;
  for (Set* candidate : sets) {
    size_t free = 0, last = 0;
    for (size_t i = 0; i < kWays; ++i) {
      const uint32_t stored = __atomic_load_n(&candidate->places[i], __ATOMIC_RELAXED);
      if (stored == place + 1) return;
      if (stored != 0) continue;
      ++free;
      last = i;
    }
    if (free <= most) continue;
    most = free;
    set = candidate;
    way = last;
  }
  if (set == nullptr) {  // both are full: replace the oldest record
    set = sets[0];
    way = __atomic_fetch_add(&set->next[0], 1u, __ATOMIC_RELAXED) % kWays;
  }
  __atomic_store_n(&set->places[way], 0u, __ATOMIC_RELEASE);
  RacyRead(Slot(*set, way), record, layout_.record_bytes);
  __atomic_store_n(&set->places[way], place + 1, __ATOMIC_RELEASE);
}

void RecordCache::Remove(uint32_t place) {
  if (file_ == nullptr || !writable_) return;
  for (Set* set : SetsOf(place)) {
    for (size_t way = 0; way < kWays; ++way) {
      if (__atomic_load_n(&set->places[way], __ATOMIC_RELAXED) != place + 1) continue;
      __atomic_store_n(&set->places[way], 0u, __ATOMIC_RELAXED);
    }
  }
}

void RecordCache::RemoveAll(uint32_t first, size_t n) {
  if (file_ == nullptr || !writable_) return;
  Set* const sets = reinterpret_cast<Set*>(file_->data());
  for (size_t set = 0; set < sets_; ++set) {
    for (uint32_t& place : sets[set].places) {
      const uint32_t stored = __atomic_load_n(&place, __ATOMIC_RELAXED);
      if (stored != 0 && stored - 1 - first < n) __atomic_store_n(&place, 0u, __ATOMIC_RELAXED);
    }
  }
}

void RecordCache::Move(uint32_t from, uint32_t to) {
  std::vector<char> record(layout_.record_bytes);
  if (!Find(from, record.data())) return;
  layout_.Seal(to, RecordLayout::KeyOf(record.data()), record.data());
  Remove(from);
  Put(to, record.data());
}

}  // namespace tsps
