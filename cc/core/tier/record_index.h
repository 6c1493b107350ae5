// RecordIndex: maps keys to the places of their records in a record log, in at most 12 bytes of
// shared memory per row, or 32 if rows may be evicted: then it also has their keys and uses.
//
// The index stores a tag of 40 bits instead of the key. About once in a thousand times Find returns
// the place of another key's record; the reader of the record detects that by its key.
//
// Any process may read while the one writer works. For a reader, and after a kill, Insert, Remove
// and Replace are one store each. Growth fills pages that no process reads yet, and a reader
// repeats its search if the segment moved to other pages meanwhile. Every load is bounds-checked: a
// damaged file yields garbage, but no access outside of the mapping.
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
  // Creates an empty index in `folder`. Its files must not exist.
  static Result<std::unique_ptr<RecordIndex>> Create(const std::string& folder, uint64_t seed,
                                                     bool has_uses = false);
  // Maps an index read-only. DataLoss, naming the file: it is not an index with this seed, or with
  // or without uses.
  static Result<std::unique_ptr<RecordIndex>> Open(const std::string& folder, uint64_t seed,
                                                   bool has_uses = false);
  // Makes this process the only writer. Checks every entry. DataLoss: an entry is impossible.
  // `max_place`: all places are below it.
  Status MakeWritable(uint32_t max_place);

  uint64_t seed() const { return seed_; }

  // Finds the places where a key with this tag may have its record: none, one, or rarely more.
  // Returns false if the file is damaged, or if the writer moved the segment during every attempt.
  bool Find(uint64_t tag, std::vector<uint32_t>* places) const;
  // Prefetches the entries of a tag: a large index does not fit into the processor's caches.
  void Prefetch(uint64_t tag) const;

  // --- Writer only. ---
  // Reserves space to insert these tags. ResourceExhausted: shared memory is full; readers see no
  // change.
  Status Reserve(const uint64_t* tags, size_t n);
  // Adds an entry. Reserve must have succeeded for its tag. `use` is stored if the index has uses.
  void Insert(uint64_t tag, uint32_t place, const RecordUse& use = {});
  // Remove and Replace return false if the index has no such entry.
  bool Remove(uint64_t tag, uint32_t place);
  bool Replace(uint64_t tag, uint32_t from, uint32_t to);
  bool Has(uint64_t tag, uint32_t place) const;
  // Visits every entry, in no particular order.
  using Visit = std::function<void(uint64_t tag, uint32_t place)>;
  void ForEach(const Visit& visit) const;
  // Visits every entry of an index with uses whose tag is `first` to `last`.
  // DataLoss: the key of an entry has another tag.
  using VisitUse = std::function<void(uint32_t place, const RecordUse& use)>;
  Status ForEachUse(uint64_t first, uint64_t last, const VisitUse& visit) const;
  // Returns the number of entries. Thread-safe.
  uint64_t live() const { return live_.load(std::memory_order_relaxed); }
  // Returns the bytes of shared memory, including pages that are free at the moment.
  size_t bytes() const;
  MappedFile* pages() const { return pages_.get(); }  // the file with nearly all bytes

 private:
  using State = IndexSegment::State;
  struct Counts {
    uint32_t live = 0;
    uint32_t removed = 0;
  };

  enum class Found { kAll, kMoved, kElsewhere };

  explicit RecordIndex(uint64_t seed) : seed_(seed) {}
  Status OpenFiles(const std::string& folder, bool has_uses);

  IndexHeader& header() const { return *reinterpret_cast<IndexHeader*>(directory_->data()); }
  uint32_t* directory(uint32_t depth) const;
  IndexSegment& segment(uint32_t number) const;
  IndexPage& page(uint32_t number) const;
  RecordUse& use(uint32_t page, uint32_t at) const;  // of an entry; only if there are uses
  // Finds the segment of a tag. Returns false if a number is out of bounds.
  bool SegmentOf(uint64_t tag, uint32_t* number) const;
  // Returns the valid one of a segment's two states. A reader copies it.
  State& StateOf(uint32_t number) const {
    IndexSegment& stored = segment(number);
    return stored.states[__atomic_load_n(&stored.moves, __ATOMIC_ACQUIRE) & 1];
  }
  bool Readable(const State& state) const;
  Found FindIn(uint32_t number, uint64_t tag, std::vector<uint32_t>* places) const;
  // Returns the position of an entry in its segment; UINT32_MAX if the segment has no such entry.
  uint32_t Position(const State& state, uint64_t tag, uint32_t place) const;

  Status Recover();
  Status Count(uint32_t max_place);
  Status CountSegment(uint32_t number, uint32_t max_place, std::vector<bool>* taken);
  // Copies a segment to new pages, with space for `coming` more entries.
  Status Rebuild(uint32_t number, uint32_t coming);
  Status Split(uint32_t number);
  Status DoubleDirectory();
  // Takes free pages, and marks all their entries as never used.
  Status TakePages(uint32_t n, uint32_t* pages);
  void GivePages(const State& state);
  Status TakeSegment(uint32_t* number);
  // Copies the entries of `from` whose tags match the pattern of `to`.
  Counts Copy(const State& from, const State& to) const;
  uint32_t CountMatching(const State& from, const State& to) const;
  // Calls visit(page, at) for the entries of a segment that have a place.
  template <typename VisitEntry>
  void ForEachEntry(const State& state, const VisitEntry& visit) const {
    for (uint32_t i = 0; i < state.n_pages; ++i) {
      const uint32_t number = state.pages[i];
      for (uint32_t at = 0; at < kPageEntries; ++at) {
        if (page(number).places[at] < kRemovedRecord) visit(number, at);
      }
    }
  }
  // Puts a place into the first free entry, and returns the entry's previous content.
  uint32_t Put(const State& state, uint64_t tag, uint32_t place, const RecordUse& use) const;

  const uint64_t seed_;
  std::unique_ptr<MappedFile> directory_, segments_, pages_;
  std::unique_ptr<MappedFile> uses_;  // null: there are none

  // --- Writer. ---
  std::vector<Counts> counts_;  // of each segment
  std::vector<uint32_t> free_pages_, free_segments_;
  std::atomic<uint64_t> live_{0};
};

}  // namespace tsps

#endif  // TFSPS_CORE_TIER_RECORD_INDEX_H_
