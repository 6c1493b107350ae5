#include "core/tier/record_index.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/base/crc32c.h"
#include "core/base/fault_point.h"
#include "core/base/prefetch.h"
#include "core/tier/record_index_access.h"

namespace tsps {

using namespace record_index;  // NOLINT: only this class uses these functions

namespace {

constexpr char kIndexMagic[8] = {'t', 's', 'p', 's', 'r', 'i', 'd', 'x'};
constexpr uint32_t kIndexVersion = 2;
constexpr uint32_t kLineEntries = 16;  // words of a cache line
constexpr int kFindAttempts = 1000;    // of a Find whose segment moves meanwhile
constexpr size_t kDirectoryBytes = kPageBytes + (size_t{8} << kMaxIndexDepth);
constexpr size_t kSegmentsBytes = sizeof(IndexSegment) << kMaxIndexDepth;
constexpr size_t kPagesBytes = (kPageBytes * kMaxPages) << kMaxIndexDepth;
constexpr size_t kUsesBytes = (kPageUsesBytes * kMaxPages) << kMaxIndexDepth;

}  // namespace

uint32_t* RecordIndex::directory(uint32_t depth) const {
  return reinterpret_cast<uint32_t*>(directory_->data() + kPageBytes) + (size_t{1} << depth);
}

IndexSegment& RecordIndex::segment(uint32_t number) const {
  return reinterpret_cast<IndexSegment*>(segments_->data())[number];
}

IndexPage& RecordIndex::page(uint32_t number) const {
  return reinterpret_cast<IndexPage*>(pages_->data())[number];
}

RecordUse& RecordIndex::use(uint32_t page, uint32_t at) const {
  return reinterpret_cast<RecordUse*>(uses_->data())[size_t{page} * kPageEntries + at];
}

Result<std::unique_ptr<RecordIndex>> RecordIndex::Create(const std::string& folder, uint64_t seed,
                                                         bool has_uses) {
  std::unique_ptr<RecordIndex> index(new RecordIndex(seed));
  TSPS_ASSIGN_OR_RETURN(index->segments_, MappedFile::Create(folder + "/records.segments",
                                                             kPageBytes, kSegmentsBytes));
  TSPS_ASSIGN_OR_RETURN(index->pages_, MappedFile::Create(folder + "/records.pages",
                                                          kPageBytes * kMinPages, kPagesBytes));
  if (has_uses) {
    TSPS_ASSIGN_OR_RETURN(index->uses_, MappedFile::Create(folder + "/records.uses",
                                                           kPageUsesBytes * kMinPages, kUsesBytes));
  }
  TSPS_ASSIGN_OR_RETURN(index->directory_, MappedFile::Create(folder + "/records.directory",
                                                              2 * kPageBytes, kDirectoryBytes));
  uint32_t number;
  TSPS_RETURN_IF_ERROR(index->TakeSegment(&number));
  IndexSegment::State& state = index->segment(number).states[0];
  state.n_pages = kMinPages;
  TSPS_RETURN_IF_ERROR(index->TakePages(kMinPages, state.pages));
  index->directory(0)[0] = number;
  IndexHeader& header = index->header();
  header.version = kIndexVersion;
  header.has_uses = has_uses;
  header.seed = seed;
  std::memcpy(header.magic, kIndexMagic, sizeof(kIndexMagic));
  header.crc = HeaderCrc(header);
  return index;
}

Result<std::unique_ptr<RecordIndex>> RecordIndex::Open(const std::string& folder, uint64_t seed,
                                                       bool has_uses) {
  std::unique_ptr<RecordIndex> index(new RecordIndex(seed));
  TSPS_RETURN_IF_ERROR(index->OpenFiles(folder, has_uses));
  return index;
}

Status RecordIndex::OpenFiles(const std::string& folder, bool has_uses) {
  const std::string path = folder + "/records.directory";
  TSPS_ASSIGN_OR_RETURN(directory_, MappedFile::Open(path, 2 * kPageBytes, kDirectoryBytes));
  const IndexHeader& stored = header();
  if (std::memcmp(stored.magic, kIndexMagic, sizeof(kIndexMagic)) != 0) {
    return Error(Code::kDataLoss, path,
                 " is not an index of records: it does not begin with the magic bytes of one. The "
                 "table cannot be opened. Restore the newest checkpoint");
  }
  if (stored.version != kIndexVersion) {
    return OtherFormat(path, "record index version " + std::to_string(stored.version),
                       "version " + std::to_string(kIndexVersion));
  }
  if (stored.crc != HeaderCrc(stored)) {
    return Damaged(path, "the checksum of its header does not match");
  }
  if (stored.seed != seed_) return Damaged(path, "it has the seed of another table's index");
  if (stored.has_uses != uint32_t{has_uses}) {
    return Damaged(path, "it says ", stored.has_uses, " of uses of rows, and the table ", has_uses);
  }
  TSPS_ASSIGN_OR_RETURN(segments_,
                        MappedFile::Open(folder + "/records.segments", kPageBytes, kSegmentsBytes));
  TSPS_ASSIGN_OR_RETURN(
      pages_, MappedFile::Open(folder + "/records.pages", kPageBytes * kMinPages, kPagesBytes));
  if (!has_uses) return {};
  TSPS_ASSIGN_OR_RETURN(
      uses_, MappedFile::Open(folder + "/records.uses", kPageUsesBytes * kMinPages, kUsesBytes));
  return {};
}

Status RecordIndex::MakeWritable(uint32_t max_place) {
  TSPS_RETURN_IF_ERROR(directory_->MakeWritable());
  TSPS_RETURN_IF_ERROR(segments_->MakeWritable());
  TSPS_RETURN_IF_ERROR(pages_->MakeWritable());
  if (uses_ != nullptr) TSPS_RETURN_IF_ERROR(uses_->MakeWritable());
  TSPS_RETURN_IF_ERROR(Recover());
  return Count(max_place);
}

size_t RecordIndex::bytes() const {
  const size_t uses = uses_ == nullptr ? 0 : uses_->size();
  return directory_->size() + segments_->size() + pages_->size() + uses;
}

bool RecordIndex::SegmentOf(uint64_t tag, uint32_t* number) const {
  const uint32_t depth = Load(header().depth);
  if (depth > kMaxIndexDepth) return false;
  const uint32_t* entry = directory(depth) + Leading(tag, depth);
  const size_t end =
      static_cast<size_t>(reinterpret_cast<const char*>(entry + 1) - directory_->data());
  if (end > directory_->size() && end > directory_->RefreshSize()) return false;
  *number = Load(*entry);
  const size_t bytes = (size_t{*number} + 1) * sizeof(IndexSegment);
  return bytes <= segments_->size() || bytes <= segments_->RefreshSize();
}

bool RecordIndex::Readable(const State& state) const {
  if (TSPS_FAULT_OFF("damage")) return true;
  if (state.n_pages < kMinPages || state.n_pages > kMaxPages || state.depth > kMaxIndexDepth) {
    return false;
  }
  uint32_t last = 0;
  for (uint32_t i = 0; i < state.n_pages; ++i) last = std::max(last, state.pages[i]);
  const size_t bytes = (size_t{last} + 1) * kPageBytes;
  return bytes <= pages_->size() || bytes <= pages_->RefreshSize();
}

bool RecordIndex::Find(uint64_t tag, std::vector<uint32_t>* places) const {
  // Searches again if the segment moves to other pages meanwhile.
  for (int attempt = 0; attempt < kFindAttempts; ++attempt) {
    uint32_t number;
    if (!SegmentOf(tag, &number)) continue;
    switch (FindIn(number, tag, places)) {
      case Found::kAll:
        return true;
      case Found::kElsewhere: {  // a split is in progress, or a kill interrupted it
        const State& state = StateOf(number);
        const uint32_t sibling = LoadRelaxed(state.sibling);
        if ((size_t{sibling} + 1) * sizeof(IndexSegment) > segments_->RefreshSize()) continue;
        if (FindIn(sibling, tag, places) == Found::kAll) return true;
        continue;
      }
      case Found::kMoved:
        continue;
    }
  }
  return false;
}

void RecordIndex::Prefetch(uint64_t tag) const {
  uint32_t number;
  if (!SegmentOf(tag, &number)) return;
  const State& state = StateOf(number);
  const uint32_t n_pages = LoadRelaxed(state.n_pages);
  if (n_pages < kMinPages || n_pages > kMaxPages) return;
  const uint32_t home = Home(tag, n_pages);
  const size_t page_number = LoadRelaxed(state.pages[home / kPageEntries]);
  const uint32_t at = home % kPageEntries;
  if ((page_number + 1) * kPageBytes > pages_->size()) return;
  const IndexPage& first = page(static_cast<uint32_t>(page_number));
  // A search ends at the first free entry, after about 20 entries at a load of 0.85.
  const uint32_t next_line = std::min(at + kLineEntries, kPageEntries - 1);
  PrefetchLine(&first.places[at]);
  PrefetchLine(&first.low[at]);
  PrefetchLine(&first.high[at]);
  PrefetchLine(&first.places[next_line]);
  PrefetchLine(&first.low[next_line]);
}

RecordIndex::Found RecordIndex::FindIn(uint32_t number, uint64_t tag,
                                       std::vector<uint32_t>* places) const {
  places->clear();
  const IndexSegment& stored = segment(number);
  const uint32_t moves = Load(stored.moves);
  const uint32_t* shared = reinterpret_cast<const uint32_t*>(&stored.states[moves & 1]);
  State state;
  for (size_t word = 0; word < sizeof(State) / sizeof(uint32_t); ++word) {
    reinterpret_cast<uint32_t*>(&state)[word] = LoadRelaxed(shared[word]);
  }
  if (!Readable(state)) return Found::kMoved;
  if (!Matches(tag, state)) return Found::kElsewhere;
  const uint32_t home = Home(tag, state.n_pages);
  uint32_t number_of_page = home / kPageEntries, at = home % kPageEntries;
  bool ended = false;
  // Visits each entry once at most: the last turn visits the entries of the home page before home.
  for (uint32_t i = 0; i <= state.n_pages && !ended; ++i) {
    const IndexPage& probed = page(state.pages[number_of_page]);
    const uint32_t end = i < state.n_pages ? kPageEntries : home % kPageEntries;
    for (; at < end; ++at) {
      const uint32_t place = Load(probed.places[at]);
      ended = place == kNoRecord;
      if (ended) break;
      if (IsPlace(place) && TagAt(probed, at) == tag) places->push_back(place);
    }
    at = 0;
    if (++number_of_page == state.n_pages) number_of_page = 0;
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return LoadRelaxed(stored.moves) == moves ? Found::kAll : Found::kMoved;
}

uint32_t RecordIndex::Position(const State& state, uint64_t tag, uint32_t place) const {
  const uint32_t entries = state.n_pages * kPageEntries;
  uint32_t at = Home(tag, state.n_pages);
  for (uint32_t i = 0; i < entries; ++i) {
    const IndexPage& probed = page(state.pages[at / kPageEntries]);
    const uint32_t stored = probed.places[at % kPageEntries];
    if (stored == kNoRecord) return kNowhere;
    if (stored == place && TagAt(probed, at % kPageEntries) == tag) return at;
    if (++at == entries) at = 0;
  }
  return kNowhere;
}

// --- Writer. ---

// Completes a split that a kill interrupted after the old segment had given half of its tags away:
// the directory still leads these tags to the old segment.
Status RecordIndex::Recover() {
  const uint32_t depth = header().depth;
  const std::string& path = directory_->path();
  if (depth > kMaxIndexDepth) {
    return Damaged(path, "its depth is ", depth, ". Expected: at most ", kMaxIndexDepth);
  }
  const size_t end = kPageBytes + (size_t{8} << depth);
  if (directory_->RefreshSize() < end) return Damaged(path, "it is too short for depth ", depth);
  for (uint32_t i = 0; i <= Mask(depth); ++i) {
    uint32_t& entry = directory(depth)[i];
    for (int hops = 0;; ++hops) {
      if (hops == 2 || (size_t{entry} + 1) * sizeof(IndexSegment) > segments_->RefreshSize()) {
        return Damaged(path, "entry ", i, " of depth ", depth, " leads to no segment");
      }
      const State& state = StateOf(entry);
      if (state.depth > depth) return Damaged(path, "segment ", entry, " has depth ", state.depth);
      if (MatchesEntry(i, depth, state)) break;
      Store(entry, state.sibling);
    }
  }
  return {};
}

Status RecordIndex::Count(uint32_t max_place) {
  const IndexHeader& counts = header();
  if (size_t{counts.n_segments} * sizeof(IndexSegment) > segments_->RefreshSize() ||
      size_t{counts.n_pages} * kPageBytes > pages_->RefreshSize() ||
      (uses_ != nullptr && size_t{counts.n_pages} * kPageUsesBytes > uses_->RefreshSize())) {
    return Damaged(directory_->path(), "its header counts ", counts.n_segments, " segments and ",
                   counts.n_pages, " pages, more than the files have");
  }
  counts_.assign(counts.n_segments, {});
  live_ = 0;
  std::vector<bool> taken(counts.n_pages), seen(counts.n_segments);
  for (uint32_t i = 0; i <= Mask(counts.depth); ++i) {
    const uint32_t number = directory(counts.depth)[i];
    if (number >= counts.n_segments) {
      return Damaged(directory_->path(), "entry ", i, " names segment ", number, ", and there are ",
                     counts.n_segments);
    }
    if (seen[number]) continue;
    seen[number] = true;
    TSPS_RETURN_IF_ERROR(CountSegment(number, max_place, &taken));
  }
  free_pages_.clear();
  free_segments_.clear();
  for (uint32_t i = 0; i < counts.n_pages; ++i) {
    if (!taken[i]) free_pages_.push_back(i);
  }
  for (uint32_t i = 0; i < counts.n_segments; ++i) {
    if (!seen[i]) free_segments_.push_back(i);
  }
  return {};
}

Status RecordIndex::CountSegment(uint32_t number, uint32_t max_place, std::vector<bool>* taken) {
  const State& state = StateOf(number);
  const std::string& path = segments_->path();
  if (!Readable(state)) return Damaged(path, "segment ", number, " has impossible pages or depth");
  for (uint32_t i = 0; i < state.n_pages; ++i) {
    if (state.pages[i] >= taken->size() || (*taken)[state.pages[i]]) {
      return Damaged(path, "page ", state.pages[i], " of segment ", number,
                     " does not exist, or another segment has it");
    }
    (*taken)[state.pages[i]] = true;
    const IndexPage& counted = page(state.pages[i]);
    for (uint32_t at = 0; at < kPageEntries; ++at) {
      const uint32_t place = counted.places[at];
      counts_[number].removed += place == kRemovedRecord;
      if (!IsPlace(place)) continue;
      ++counts_[number].live;
      if (place >= max_place || !Matches(TagAt(counted, at), state)) {
        return Damaged(pages_->path(), "entry ", at, " of page ", state.pages[i],
                       " cannot be in segment ", number);
      }
    }
  }
  if (counts_[number].live + counts_[number].removed >= state.n_pages * kPageEntries) {
    return Damaged(pages_->path(), "segment ", number, " has no free entry");
  }
  live_ += counts_[number].live;
  return {};
}

uint32_t RecordIndex::Put(const State& state, uint64_t tag, uint32_t place,
                          const RecordUse& use_of_row) const {
  const uint32_t entries = state.n_pages * kPageEntries;
  uint32_t at = Home(tag, state.n_pages);
  for (;;) {
    IndexPage& probed = page(state.pages[at / kPageEntries]);
    uint32_t& word = probed.places[at % kPageEntries];
    if (const uint32_t before = word; !IsPlace(before)) {
      SetTag(probed, at % kPageEntries, tag);
      if (uses_ != nullptr) use(state.pages[at / kPageEntries], at % kPageEntries) = use_of_row;
      Store(word, place);
      return before;
    }
    if (++at == entries) at = 0;
  }
}

void RecordIndex::Insert(uint64_t tag, uint32_t place, const RecordUse& use_of_row) {
  uint32_t number;
  SegmentOf(tag, &number);
  const uint32_t before = Put(StateOf(number), tag, place, use_of_row);
  Counts& counts = counts_[number];
  ++counts.live;
  counts.removed -= before == kRemovedRecord;
  ++live_;
}

bool RecordIndex::Has(uint64_t tag, uint32_t place) const {
  uint32_t number = 0;
  SegmentOf(tag, &number);
  return Position(StateOf(number), tag, place) != kNowhere;
}

bool RecordIndex::Replace(uint64_t tag, uint32_t from, uint32_t to) {
  uint32_t number;
  SegmentOf(tag, &number);
  const State& state = StateOf(number);
  const uint32_t at = Position(state, tag, from);
  if (at == kNowhere) return false;
  Store(page(state.pages[at / kPageEntries]).places[at % kPageEntries], to);
  if (to == kRemovedRecord) {
    --counts_[number].live;
    ++counts_[number].removed;
    --live_;
  }
  return true;
}

bool RecordIndex::Remove(uint64_t tag, uint32_t place) {
  return Replace(tag, place, kRemovedRecord);
}

}  // namespace tsps
