// RecordCache: copies of a log's records, by their places, in memory that all processes of a job
// share. When one process has read a record, for a prefetch or a lookup, the others find it here,
// so a step's rows are read from the disk once.
//
// The cache has no locks. Each record has a seal that includes its place, so Find rejects a record
// that two processes wrote at once, or that one writes during the read. A record never changes
// while its place is in the index. Records of rows that have entered memory leave the cache first,
// then the oldest records.
#ifndef TFSPS_CORE_TIER_RECORD_CACHE_H_
#define TFSPS_CORE_TIER_RECORD_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/os/mapped_file.h"
#include "core/tier/record_file.h"

namespace tsps {

class RecordCache {
 public:
  // Create or map the cache in `folder`, with at most `bytes`. A cache that is too small for one
  // set of records keeps nothing.
  static Result<std::unique_ptr<RecordCache>> Create(const std::string& folder,
                                                     const RecordLayout& layout, size_t bytes);
  static Result<std::unique_ptr<RecordCache>> Open(const std::string& folder,
                                                   const RecordLayout& layout, size_t bytes);

  // Returns the capacity in records.
  size_t records() const { return sets_ * kWays; }
  MappedFile* file() const { return file_.get(); }  // null: the cache keeps nothing
  size_t bytes() const { return file_ == nullptr ? 0 : BytesOf(layout_, sets_); }
  // Copies the whole record of a place, and returns whether the cache had it. Find and Put are
  // thread-safe.
  bool Find(uint32_t place, char* record) const;
  void Put(uint32_t place, const char* record);
  // Returns whether the cache has a record of this place, without checking it.
  bool Has(uint32_t place) const;
  // Drops a record that no process needs any more.
  void Remove(uint32_t place);
  // Drops the records of the n places from `first` on.
  void RemoveAll(uint32_t first, size_t n);
  // Keeps a record under the place to which the log has copied it.
  void Move(uint32_t from, uint32_t to);
  // Prefetches what the next call for this place reads first.
  void Prefetch(uint32_t place) const;
  // Prefetches the record itself, for Find. Call it some time after Prefetch.
  void PrefetchRecord(uint32_t place) const;

 private:
  // A record may lie in any way of two sets, so that most ways are in use before a record that is
  // still needed must leave.
  static constexpr size_t kWays = 16;
  struct Set {
    uint32_t places[kWays];  // place + 1; 0: the way is free
    uint32_t next[kWays];    // next[0] counts replacements; the array fills a separate cache line
  };

  RecordCache(std::unique_ptr<MappedFile> file, const RecordLayout& layout, size_t sets)
      : file_(std::move(file)), layout_(layout), sets_(sets) {}
  static size_t SetsFor(const RecordLayout& layout, size_t bytes);
  static size_t BytesOf(const RecordLayout& layout, size_t sets);
  std::array<Set*, 2> SetsOf(uint32_t place) const;
  char* Slot(const Set& set, size_t way) const;
  // Returns where the record of a place is; null: the cache does not have it.
  const char* SlotOf(uint32_t place) const;

  const std::unique_ptr<MappedFile> file_;  // null: no set fits
  const RecordLayout& layout_;
  const size_t sets_;
  bool writable_ = true;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_CACHE_H_
