// RecordIndex: where the record of a key lies in a record log, in at most 12 bytes of shared memory
// per row.
//
// Keys themselves are not in it, a tag of 40 bits is: a find may name a place whose record is of
// another key, once in some thousand times, and whoever reads the record sees so by its key.
//
// Any process may read beside the one writer: Insert, Remove and Replace are one store each, as far
// as a reader or a kill can tell; what grows is made on pages that nobody reads, and a reader looks
// again when a segment has moved to others meanwhile. Every load is bounds-checked: of a damaged
// file comes garbage, never a wild access.
#ifndef TFSPS_CORE_TIER_RECORD_INDEX_H_
#define TFSPS_CORE_TIER_RECORD_INDEX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/os/mapped_file.h"
#include "core/tier/record_index_layout.h"

namespace tsps {

class RecordIndex {
 public:
  // Empty, in files of `folder` that must not exist.
  static Result<std::unique_ptr<RecordIndex>> Create(const std::string& folder, uint64_t seed);
  // To read. DataLoss, naming the file, for what is no index with this seed.
  static Result<std::unique_ptr<RecordIndex>> Open(const std::string& folder, uint64_t seed);
  // To write, too, alone. Looks at every entry: DataLoss if one cannot be. `max_place`: places are
  // below it.
  Status MakeWritable(uint32_t max_place);

  uint64_t seed() const { return seed_; }

  // Places where a key of this tag may be: none, one, or rarely more. False: the file is damaged,
  // or the writer moves this segment again and again.
  bool Find(uint64_t tag, std::vector<uint32_t>* places) const;
  // This tag will be looked for: an index of many rows is in no cache.
  void Prefetch(uint64_t tag) const;

  // --- Writer only. ---
  // Room for inserts of these tags. ResourceExhausted: shared memory; nothing has changed then that
  // a reader can see.
  Status Reserve(const uint64_t* tags, size_t n);
  // Adds an entry, for which there is room.
  void Insert(uint64_t tag, uint32_t place);
  // False if there is no such entry.
  bool Remove(uint64_t tag, uint32_t place);
  bool Replace(uint64_t tag, uint32_t from, uint32_t to);
  bool Has(uint64_t tag, uint32_t place) const;
  // Every entry, in no order.
  using Visit = std::function<void(uint64_t tag, uint32_t place)>;
  void ForEach(const Visit& visit) const;
  // Entries; any thread may ask.
  uint64_t live() const { return live_.load(std::memory_order_relaxed); }
  // Of shared memory, pages that are free at the moment included.
  size_t bytes() const;
  MappedFile* pages() const { return pages_.get(); }  // nearly all of it

 private:
  using State = IndexSegment::State;
  struct Use {
    uint32_t live = 0;
    uint32_t removed = 0;
  };

  enum class Found { kAll, kMoved, kElsewhere };

  explicit RecordIndex(uint64_t seed) : seed_(seed) {}
  Status OpenFiles(const std::string& folder);

  IndexHeader& header() const { return *reinterpret_cast<IndexHeader*>(directory_->data()); }
  uint32_t* directory(uint32_t depth) const;
  IndexSegment& segment(uint32_t number) const;
  IndexPage& page(uint32_t number) const;
  // The segment of a tag; false: something is out of bounds.
  bool SegmentOf(uint64_t tag, uint32_t* number) const;
  // What holds of a segment. A reader copies it.
  State& StateOf(uint32_t number) const {
    IndexSegment& one = segment(number);
    return one.states[__atomic_load_n(&one.moves, __ATOMIC_ACQUIRE) & 1];
  }
  bool Readable(const State& state) const;
  Found FindIn(uint32_t number, uint64_t tag, std::vector<uint32_t>* places) const;
  // The entry of a tag and a place, as position among the segment's entries; none: UINT32_MAX.
  uint32_t Position(const State& state, uint64_t tag, uint32_t place) const;

  Status Recover();
  Status Count(uint32_t max_place);
  Status CountSegment(uint32_t number, uint32_t max_place, std::vector<bool>* taken);
  // With room for `coming` more.
  Status MakeAnew(uint32_t number, uint32_t coming);
  Status Split(uint32_t number);
  Status DoubleDirectory();
  // Pages that nobody uses, all their entries never used.
  Status TakePages(uint32_t n, uint32_t* pages);
  void GivePages(const State& state);
  Status TakeSegment(uint32_t* number);
  // Copies the entries of one segment's pages, those alone whose tags match the other's pattern.
  Use Copy(const State& from, const State& to) const;
  uint32_t CountMatching(const State& from, const State& to) const;
  void ForEachIn(const State& state, const Visit& visit) const;
  // Returns what was in the entry before.
  uint32_t Put(const State& state, uint64_t tag, uint32_t place) const;

  const uint64_t seed_;
  std::unique_ptr<MappedFile> directory_, segments_, pages_;

  // --- Writer. ---
  std::vector<Use> use_;  // of each segment
  std::vector<uint32_t> free_pages_, free_segments_;
  std::atomic<uint64_t> live_{0};
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_INDEX_H_
