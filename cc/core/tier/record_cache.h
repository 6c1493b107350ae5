// RecordCache: copies of records of a log, by their places, in memory that all processes of a job
// share. What one of them has read, ahead of its need or for a look-up, the others find: a step's
// rows are read from the disk once.
//
// There are no locks. A record is sealed with its place: what two have written at once, or one
// writes while another reads, is none. A record never changes while its place is in the index.
// Those of rows that have come to memory make room first, then the oldest.
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
  // In `folder`, of at most `bytes`; with less than a page it keeps nothing.
  static Result<std::unique_ptr<RecordCache>> Create(const std::string& folder,
                                                     const RecordLayout& layout, size_t bytes);
  static Result<std::unique_ptr<RecordCache>> Open(const std::string& folder,
                                                   const RecordLayout& layout, size_t bytes);

  // How many records it has room for.
  size_t records() const { return sets_ * kWays; }
  MappedFile* file() const { return file_.get(); }  // null: it keeps nothing
  size_t bytes() const { return file_ == nullptr ? 0 : BytesOf(layout_, sets_); }
  // Copies a whole record. False: it is not there. Thread-safe, as is Put.
  bool Find(uint32_t place, char* record) const;
  void Put(uint32_t place, const char* record);
  // Nobody needs it any more.
  void Remove(uint32_t place);
  // The record is at another place from now on.
  void Move(uint32_t from, uint32_t to);
  // One of these will be called.
  void Prefetch(uint32_t place) const;
  // Find will be; after Prefetch.
  void PrefetchRecord(uint32_t place) const;

 private:
  // A place may be in any way of two sets: so most of the ways can be used before one that is
  // needed makes room for another.
  static constexpr size_t kWays = 16;
  struct Set {
    uint32_t places[kWays];  // and 1; 0: none
    uint32_t next[kWays];    // the first one counts what was put; a cache line of its own
  };

  RecordCache(std::unique_ptr<MappedFile> file, const RecordLayout& layout, size_t sets)
      : file_(std::move(file)), layout_(layout), sets_(sets) {}
  static size_t SetsFor(const RecordLayout& layout, size_t bytes);
  static size_t BytesOf(const RecordLayout& layout, size_t sets);
  std::array<Set*, 2> SetsOf(uint32_t place) const;
  char* Slot(const Set& set, size_t way) const;

  const std::unique_ptr<MappedFile> file_;  // null: there is no room for a set
  const RecordLayout& layout_;
  const size_t sets_;
  bool writable_ = true;
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_CACHE_H_
